"""The words of the tables, in the guide's two languages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """`load` and `joined` are filled in; heads are a table's first row."""

    caching: tuple[str, str]  # on, off
    chunking: tuple[str, str]
    joined: str  # a way's two words
    load: str
    client_head: tuple[str, ...]
    board_intro: str
    board_head: tuple[str, ...]
    picture: str


ENGLISH = Words(
    caching=("cache", "no cache"),
    chunking=("chunks", "whole prompts"),
    joined="{}, {}",
    load=(
        "{cpu}, {threads} threads, SmolLM2-135M in bfloat16. {questions} questions come at random times,"
        " {rate:.2f} a second on average, each with the same {system:,} tokens before {context} of its own and an"
        " answer of {answer}; beside them {others} others read answers of {long:,}, one after another. Milliseconds:"
    ),
    client_head=(
        "as `octavo bench` saw it",
        *("first token, P50", "P90", "P99"),
        *("between tokens of the others, P50", "P99", "longest"),
        *("prompt tokens from the cache", "waiting, at most"),
    ),
    board_intro=(
        "The same by the queries of the Service board, of a real Prometheus. Its quantiles are estimates within a"
        " bucket, and it knows no difference between the questions and the others: all requests are in each figure:"
    ),
    board_head=(
        "as the board shows it",
        *("Time to first token, P50", "P90", "P99"),
        *("Inter-token latency, P50", "P99"),
        *("Time in the queue, P99", "Prefix cache hit ratio"),
    ),
    picture="First tokens of questions and gaps of the others, with prefix caching and chunked prefill on and off",
)

JAPANESE = Words(
    caching=("キャッシュあり", "キャッシュなし"),
    chunking=("分割あり", "分割なし"),
    joined="{}・{}",
    load=(
        "{cpu}、{threads} スレッド、SmolLM2-135M (bfloat16)。"
        "{questions} 件の質問を平均毎秒 {rate:.2f} 件、不規則な間隔で送ります。"
        "各質問は共通の {system:,} トークンに固有の {context} トークンが続き、回答は {answer} トークンです。"
        "並行して {others} 人の利用者が {long:,} トークンの回答を次々に受け取ります。単位はミリ秒です。"
    ),
    client_head=(
        "`octavo bench` の計測",
        *("最初のトークンまで P50", "P90", "P99"),
        *("他の利用者のトークン間隔 P50", "P99", "最大"),
        *("キャッシュから得たプロンプトの割合", "待ち行列の最大"),
    ),
    board_intro=(
        "同じ負荷を、実際の Prometheus に対する Service ダッシュボードのクエリで見た値です。"
        "分位数はバケット内の推定値で、質問と他の利用者を区別せず、すべてのリクエストを含みます。"
    ),
    board_head=(
        "ダッシュボードの値",
        *("Time to first token P50", "P90", "P99"),
        *("Inter-token latency P50", "P99"),
        *("Time in the queue P99", "Prefix cache hit ratio"),
    ),
    picture="プレフィックスキャッシュと分割プリフィルの有無による、最初のトークンまでの時間とトークン間隔",
)


def of(document: str) -> Words:
    """The language of a document, by its name: `rag.ja.md` is Japanese."""
    return JAPANESE if document.endswith(".ja.md") else ENGLISH
