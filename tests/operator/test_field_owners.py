"""Fields that others set on our children, from the API server's managedFields."""

from octavo_operator.field_owners import additions


def entry(manager, fields, **more):
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    } | more


OURS = entry(
    "octavo-operator",
    {
        "f:metadata": {"f:labels": {"f:octavo.dev/service": {}}},
        "f:spec": {"f:ports": {'k:{"port":8000,"protocol":"TCP"}': {".": {}, "f:port": {}}}, "f:selector": {}},
    },
)


def live(*entries):
    return {"metadata": {"name": "x", "managedFields": list(entries)}}


def test_ours_alone_is_no_addition():
    assert additions(live(OURS)) == []
    assert additions({"metadata": {"name": "x"}}) == []


def test_a_label_of_another_names_its_manager():
    theirs = entry("kubectl-label", {"f:metadata": {"f:labels": {"f:team": {}}}})
    assert additions(live(OURS, theirs)) == ["metadata.labels.team (kubectl-label)"]


def test_a_field_we_set_too_is_not_theirs():
    theirs = entry("kubectl-patch", {"f:spec": {"f:selector": {}, "f:type": {}}})
    assert additions(live(OURS, theirs)) == ["spec.type (kubectl-patch)"]


def test_items_of_lists_are_told_by_their_key():
    theirs = entry("mesh", {"f:spec": {"f:containers": {'k:{"name":"proxy"}': {".": {}, "f:image": {}}}}})
    assert additions(live(OURS, theirs)) == ['spec.containers[{"name":"proxy"}].image (mesh)']


def test_status_and_the_cluster_itself_do_not_count():
    status = entry("some-controller", {"f:status": {"f:x": {}}}, subresource="status")
    revision = entry("kube-controller-manager", {"f:metadata": {"f:annotations": {"f:revision": {}}}})
    assert additions(live(OURS, status, revision)) == []


def test_many_are_counted():
    theirs = entry("tool", {"f:metadata": {"f:labels": {f"f:label-{n}": {} for n in range(9)}}})
    found = additions(live(OURS, theirs))
    assert len(found) == 6
    assert found[-1] == "and 4 more"
