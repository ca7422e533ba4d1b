"""The openai Python SDK as a client: streaming and not, errors by class."""

import pytest

import wire
from wire import chat_body, say, script

openai = pytest.importorskip("openai")


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def messages(directive):
    return chat_body(directive)["messages"]


def test_chat(client):
    r = client.chat.completions.create(model="scripted", messages=messages(say("hello 🙂")))
    assert r.choices[0].message.content == "hello 🙂"
    assert r.choices[0].finish_reason == "stop" and r.choices[0].message.role == "assistant"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="scripted", messages=messages(say("hello 漢字")), stream=True,
        stream_options={"include_usage": True}, max_completion_tokens=100)
    text, usage, finish = "", None, []
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for c in chunk.choices:
            text += c.delta.content or ""
            if c.finish_reason:
                finish.append(c.finish_reason)
    assert text == "hello 漢字" and finish == ["stop"] and usage.completion_tokens > 0


def test_stream_helper(client):
    with client.chat.completions.stream(model="scripted", messages=messages(say("abc"))) as s:
        for _ in s:
            pass
        assert s.get_final_completion().choices[0].message.content == "abc"


def test_every_field(client):
    r = client.chat.completions.create(
        model="scripted", messages=messages("free"), frequency_penalty=0.5, presence_penalty=0.5,
        logit_bias={"65": -1}, logprobs=True, top_logprobs=3, max_tokens=8, n=2, seed=7, stop=["zzz"],
        temperature=0.9, top_p=0.9, user="u", metadata={"a": "b"}, store=False,
        service_tier="auto", parallel_tool_calls=True, response_format={"type": "text"},
        extra_body={"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1})
    assert len(r.choices) == 2
    for c in r.choices:
        assert c.finish_reason == "length" and len(c.logprobs.content) == 8
        assert len(c.logprobs.content[0].top_logprobs) == 3


def test_completions(client):
    r = client.completions.create(model="scripted", prompt=[say("a") + "<|answer|>",
                                                            say("b") + "<|answer|>"], logprobs=2)
    assert [c.text for c in r.choices] == ["a", "b"]
    assert r.choices[0].logprobs.tokens == ["a"]
    text = ""
    for chunk in client.completions.create(model="scripted", prompt=say("stream") + "<|answer|>",
                                           stream=True):
        text += chunk.choices[0].text
    assert text == "stream"


def test_models(client):
    assert [m.id for m in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted-alias").id == "scripted"


def test_error_classes(client, start, server):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="scripted", messages=messages("x"), temperature=9)
    assert e.value.param == "temperature" and e.value.status_code == 400
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=messages("x"))
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="scripted", messages=[])
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=messages(script([65], fail=0)))
    with pytest.raises(openai.APIError):
        for _ in client.chat.completions.create(
                model="scripted", messages=messages(script([65, 66], fail=1)), stream=True):
            pass
    keyed = start("--key", "k")
    wrong = openai.OpenAI(base_url=keyed.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    right = openai.OpenAI(base_url=keyed.url + "/v1", api_key="k", max_retries=0)
    assert right.models.list().data


def test_abort_a_stream(client, server):
    stream = client.chat.completions.create(model="scripted", stream=True,
                                            messages=messages("free [[delay=2000]]"))
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    r = client.chat.completions.create(model="scripted", messages=messages(say("ok")))
    assert r.choices[0].message.content == "ok"


def test_async_clients_together(server):
    import asyncio

    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x",
                                      max_retries=0) as c:
            async def one(i):
                r = await c.chat.completions.create(model="scripted",
                                                    messages=messages(say(f"answer {i}")))
                return r.choices[0].message.content
            return await asyncio.gather(*[one(i) for i in range(20)])

    assert asyncio.run(main()) == [f"answer {i}" for i in range(20)]
