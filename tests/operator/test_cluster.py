"""The API client: statuses become our error types, and no header or credential reaches a message."""

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from kubernetes.aio.client.exceptions import ApiException
from prometheus_client import CollectorRegistry

from octavo_operator import cluster as cluster_module
from octavo_operator import names
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import ConfigError, Conflict, Missing, Refused, Retryable, Throttled
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.manifests import JOB, MONITORING, SERVICE, pod_monitor, prometheus_rule, sealed, service
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.plan import Apply, Delete, MarkVictim
from octavo_operator.spec import read_spec
from octavo_operator.watched import WATCHED
from operator_samples import resource

KEY = Key("team", "assistant")
MONITORING_MAKERS = (pod_monitor, prometheus_rule)


class Response:
    def __init__(self, document, status=200):
        self.status = status
        self._document = document

    async def json(self):
        return self._document


class Transport:
    """Answers from a list; remembers what was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.client = SimpleNamespace(configuration=SimpleNamespace(api_key={"BearerToken": "Bearer old"}))

    async def request(self, verb, path, **params):
        self.asked.append((verb, path, params))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def stored_token(monkeypatch):
    """What a kubeconfig or a mounted token holds now; the same as before unless a test changes it."""
    stored = SimpleNamespace(api_key={"BearerToken": "Bearer old"}, error=None)

    async def credentials(settings):
        if stored.error:
            raise stored.error
        return stored

    monkeypatch.setattr(cluster_module, "credentials", credentials)
    return stored


def cluster(*answers, **settings):
    return Cluster(Transport(*answers), OperatorConfig(**settings), Metrics(CollectorRegistry()))


def failure(status, **headers):
    error = ApiException(status=status, reason="Because")
    error.body, error.headers = b"in the server's words", {"Authorization": "Bearer secret-marker"} | headers
    return error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, Refused), (401, Refused), (403, Refused), (410, Refused), (422, Refused)),
        *((408, Retryable), (409, Conflict), (429, Throttled)),
        *((500, Retryable), (502, Retryable), (503, Throttled), (504, Retryable)),
    ],
)
async def test_a_status_becomes_a_type(status, kind):
    with pytest.raises(kind) as caught:
        await cluster(failure(status)).service(KEY)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert "in the server's words" in str(caught.value)
    assert "secret-marker" not in str(caught.value)


async def test_a_rotated_token_is_read_again(stored_token):
    stored_token.api_key = {"BearerToken": "Bearer new"}
    made = cluster(failure(401), Response(resource()))
    assert await made.service(KEY) == resource()
    assert made._api.client.configuration.api_key == {"BearerToken": "Bearer new"}


@pytest.mark.parametrize("error", [None, ConfigError("just being written")])
async def test_a_token_that_is_refused_and_still_the_same_is_not_tried_again(stored_token, error):
    stored_token.error = error
    made = cluster(failure(401))
    with pytest.raises(Refused):
        await made.service(KEY)


async def test_requests_are_counted_without_the_names_of_objects():
    made = cluster(
        Response({"metadata": {}, "items": []}), failure(404), Response({}), TimeoutError(), namespaces="team"
    )
    await made.service_keys()
    await made.service(KEY)
    await made.write_status(resource(), {})
    with pytest.raises(Retryable):
        await made.lease()
    samples = made._metrics.api_requests.collect()[0].samples
    counted = {tuple(sample.labels.values()) for sample in samples if sample.name.endswith("_total")}
    services = "inferenceservices"
    assert counted == {
        ("GET", services, "200"),
        ("GET", services, "404"),
        ("PATCH", f"{services}/status", "200"),
        ("GET", "leases", "none"),
    }


async def test_every_watched_object_is_seen_by_its_metadata():
    head = {"namespace": "team", "name": "assistant", "uid": "u", "resourceVersion": "7"}
    empty = {"metadata": {}, "items": None}  # as the API server writes an empty list of metadata
    pages = [Response({"metadata": {}, "items": [{"metadata": head}]}), *[Response(empty) for _ in WATCHED[1:]]]
    made = cluster(*pages, namespaces="team")
    assert await made.sights() == {Identity("inferenceservices", "u"): Sight("7", KEY)}
    assert all("PartialObjectMetadataList" in params["accept"] for *_, params in made._api.asked)
    selectors = {params["labelSelector"] for *_, params in made._api.asked[1:]}
    assert selectors == {"app.kubernetes.io/managed-by=octavo-operator"}


async def test_what_is_missing_is_none():
    assert await cluster(failure(404)).service(KEY) is None
    with pytest.raises(Missing):
        await cluster(failure(404)).execute("team", MarkVictim("pod", "why"))


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("9999", 60.0), ("soon", 1.0), ("0", 1.0)])
async def test_the_servers_wish_to_wait_is_kept_within_reason(header, seconds):
    with pytest.raises(Throttled) as caught:
        await cluster(failure(429, **{"Retry-After": header})).service(KEY)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("error", [aiohttp.ClientConnectionError("refused"), TimeoutError(), ValueError("no JSON")])
async def test_no_answer_is_told_by_readiness_until_there_is_one(error):
    made = cluster(error, failure(403))
    with pytest.raises(Retryable):
        await made.service(KEY)
    assert "does not answer" in made.trouble
    with pytest.raises(Refused):
        await made.service(KEY)
    assert made.trouble is None


@pytest.mark.parametrize("answer", [None, [], "captive portal"])
async def test_an_answer_that_is_no_object_is_no_answer(answer):
    with pytest.raises(Retryable):
        await cluster(Response(answer)).service(KEY)


async def test_a_hanging_server_is_given_up():
    made = cluster(api_timeout_seconds=0.05)

    async def hang(*_, **__):
        await asyncio.sleep(5)

    made._api.request = hang
    with pytest.raises(Retryable):
        await made.service(KEY)


async def test_only_objects_known_to_be_ours_are_forced():
    manifest = sealed(service(resource()))
    made = cluster(Response({}, 201), Response({}))
    await made.execute("team", Apply(manifest, "absent"))
    await made.execute("team", Apply(manifest, "changed", uid="u1"))
    (_, path, create), (_, _, change) = made._api.asked
    assert path == "/api/v1/namespaces/team/services/assistant"
    assert (create["force"], change["force"]) == ("false", "true")
    assert "uid" not in create["body"]["metadata"]
    assert create["body"]["metadata"]["resourceVersion"] == "1", "no object has it: whatever is there is left alone"
    assert change["body"]["metadata"]["uid"] == "u1"
    assert "resourceVersion" not in change["body"]["metadata"]
    assert create["fieldManager"] == "octavo-operator"


async def test_lists_are_read_to_their_end():
    first = {"metadata": {"continue": "more"}, "items": [resource("a")]}
    last = {"metadata": {}, "items": [resource("b")]}
    made = cluster(Response(first), Response(last), namespaces="team")
    assert await made.service_keys() == {Key("team", "a"), Key("team", "b")}
    assert made._api.asked[1][2]["continue"] == "more"


async def test_status_goes_to_the_subresource_alone():
    made = cluster(Response({}))
    await made.write_status(resource(), {"replicas": 1})
    ((verb, path, params),) = made._api.asked
    assert (verb, path.rpartition("/")[2]) == ("PATCH", "status")
    assert set(params["body"]) == {"apiVersion", "kind", "metadata", "status"}
    assert set(params["body"]["metadata"]) == {"name", "namespace", "uid"}


async def filled(*answers, **found):
    """A cluster that knows a service and what else was listed."""
    lists = {names.PLURAL: [stored(resource())]} | found
    pages = [Response({"metadata": {}, "items": lists.get(watched.plural, [])}) for watched in WATCHED]
    made = cluster(*pages, *answers, namespaces="team")
    await made.fill()
    made._api.asked.clear()
    return made


def stored(body, version="7", uid=None):
    head = body["metadata"] | {"resourceVersion": version} | ({"uid": uid} if uid else {})
    return body | {"metadata": head}


NO_MONITORS = failure(404)


async def test_a_service_that_was_listed_is_known_without_a_request():
    live = stored(sealed(service(resource())), uid="u1")
    made = await filled(NO_MONITORS, services=[live])
    seen = await made.known(KEY)
    assert seen.resource == stored(resource())
    assert seen.children[SERVICE]["metadata"]["uid"] == "u1"
    assert [path for _, path, _ in made._api.asked] == ["/apis/monitoring.coreos.com/v1"]
    assert await made.known(Key("team", "other")) is None
    made.doubt(KEY)
    assert await made.known(KEY) is None


async def test_monitors_and_rules_are_read_once_in_half_a_minute_where_both_are_known():
    kinds = Response({"resources": [{"kind": "PodMonitor"}, {"kind": "PrometheusRule"}]})
    parent = resource()
    told = [Response(stored(sealed(make(parent, read_spec(parent))), uid=make.__name__)) for make in MONITORING_MAKERS]
    made = await filled(kinds, *told, services=[stored(sealed(service(parent)), uid="u1")])
    for _ in range(2):
        seen = await made.known(KEY)
    assert seen.monitoring_available
    assert set(MONITORING) <= {kind for kind, child in seen.children.items() if child}
    paths = [path.rpartition("/")[0].rpartition("/")[2] for _, path, _ in made._api.asked[1:]]
    assert sorted(paths) == ["podmonitors", "prometheusrules"]


async def test_one_of_the_kinds_alone_is_not_enough():
    live = stored(sealed(service(resource())), uid="u1")
    made = await filled(Response({"resources": [{"kind": "PodMonitor"}]}), services=[live])
    assert not (await made.known(KEY)).monitoring_available


async def test_kinds_that_come_or_go_are_news_once(monkeypatch):
    """Whoever else asks meanwhile takes nothing of it away."""
    monkeypatch.setattr(cluster_module, "_MONITORING_SECONDS", -1.0)  # no answer is kept
    both = Response({"resources": [{"kind": "PodMonitor"}, {"kind": "PrometheusRule"}]})
    made = await filled(NO_MONITORS, both, both, both, NO_MONITORS)
    assert not await made.monitoring_changed()  # as it was found at the start
    assert await made._monitoring_available()
    assert await made.monitoring_changed()
    assert not await made.monitoring_changed()
    assert await made.monitoring_changed()


async def test_the_answer_to_a_write_is_known_at_once():
    wanted = sealed(service(resource()))
    status = stored(resource(), version="9") | {"status": {"replicas": 1}}
    made = await filled(*[Response(stored(wanted, "8", "u1"))] * 2, Response(status), NO_MONITORS)
    assert await made.execute("team", Apply(wanted, "absent"), known=True)
    assert not await made.execute("team", Apply(wanted, "drifted", uid="u1"), known=True), "it was so already"
    await made.write_status(stored(resource()), {"replicas": 1}, known=True)
    seen = await made.known(KEY)
    assert seen.children[SERVICE]["metadata"]["resourceVersion"] == "8"
    assert seen.resource["status"] == {"replicas": 1}


async def test_a_write_that_rests_on_what_is_known_says_on_which_version():
    made = await filled(Response({}), Response({}))
    await made.execute("team", Apply(sealed(service(resource())), "changed", uid="u1", version="5"), known=True)
    await made.write_status(stored(resource()), {}, known=True)
    versions = [params["body"]["metadata"]["resourceVersion"] for *_, params in made._api.asked]
    assert versions == ["5", "7"]


async def test_a_service_is_the_latest_if_the_api_server_says_so():
    made = await filled(Response(stored(resource())), Response(stored(resource(), "8")), failure(404))
    assert [await made.is_latest(stored(resource())) for _ in range(3)] == [True, False, False]


async def test_a_job_that_was_deleted_is_not_deleted_again():
    owner = {"kind": names.KIND, "name": "assistant", "controller": True}
    job = {"metadata": {"namespace": "team", "name": "check", "uid": "j", "resourceVersion": "7"}}
    job["metadata"]["ownerReferences"] = [owner]
    made = await filled(Response({"kind": "Status"}), jobs=[job])
    assert made.store.all_of("jobs", KEY)
    await made.execute("team", Delete(JOB, "check", "j", "not needed"))
    assert not made.store.all_of("jobs", KEY)


async def test_a_service_that_is_gone_is_known_no_more():
    made = await filled(failure(404))
    assert await made.service(KEY) is None
    assert await made.known(KEY) is None


async def test_what_a_look_asked_for_is_known_afterwards():
    live = stored(sealed(service(resource())), "9", "u1")
    nothing = {"metadata": {}, "items": []}
    made = await filled(NO_MONITORS)
    made.doubt(KEY)
    given = {"/services/assistant": Response(live), "/jobs": Response(nothing), "/pods": Response(nothing)}

    async def request(verb, path, **params):
        answer = next((given[end] for end in given if path.endswith(end)), failure(404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    made._api.request = request
    seen = await made.observe(stored(resource()))
    assert (await made.known(KEY)).children == seen.children
    assert seen.children[SERVICE] == live


async def test_items_of_a_list_say_what_they_are():
    page = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": [{"metadata": {"name": "a"}}]}
    (item,) = await cluster(Response(page)).list_all("/api/v1/services")
    assert (item["kind"], item["apiVersion"]) == ("Service", "v1")
