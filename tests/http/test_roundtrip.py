"""Tool calls through chat templates and back: the text that a template makes of an assistant's calls is
given to the parser as the model's answer; it must read the same calls, and the message that comes
out must render to the same prompt again. For the templates of the models and tokenizers next to the
project, and for those of llama.cpp's sources where these are on the machine."""

import json
import os
import re
from pathlib import Path

import pytest

import wire

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
CACHE = Path.home() / ".cache" / "quern"
PEERS = sorted(CACHE.glob("peers/llama.cpp-*/source/models/templates"))

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string"}, "year": {"type": "string"}, "days": {"type": "integer"},
            "flag": {"type": "boolean"}, "opts": {"type": "object"}, "list": {"type": "array"},
            "x": {"type": "number"}}}}},
    {"type": "function", "function": {"name": "now", "description": "d", "parameters": {
        "type": "object", "properties": {}}}}]
HARD = {"city": 'São "Paulo"\nx < 1', "days": 3, "flag": True, "list": ["x", 2],
        "opts": {"a": [1, "b"], "c": "d"}, "x": 0.5, "year": "2025"}
TALKS = {"values": [("get_weather", HARD)], "none": [("now", {})],
         "two": [("get_weather", {"city": "Oslo", "days": 1}), ("now", {})]}

# Markers that are tokens of their own in the families' vocabularies.
SPECIAL = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|channel|>", "<|message|>",
           "<|constrain|>", "<|start|>", "<|end|>", "<|call|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
           "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
           "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call_start|>", "<|python_tag|>"]
# What ends a turn; the model's end token or what follows it.
ENDS = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|end|>", "<|call|>", "<｜end▁of▁sentence｜>",
        "<turn|>", "<end_of_turn>", "<seed:eos>", "[e~[", "<|eos|>", "<|end_of_text|>", "<|tool_response>", "<|user|>",
        "<|observation|>", "</assistant>", "<|role_end|>", "<sep>"]

# llama.cpp's copies, by the syntax that quern reads them with.
FAMILIES = {
    "qwen-xml": ["Qwen3-Coder", "Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "StepFun3.5-Flash"],
    "json": ["Qwen-Qwen3-0.6B", "Qwen-QwQ-32B", "Qwen-Qwen2.5-7B-Instruct", "ibm-granite-granite-4.0",
             "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "MiMo-VL", "Bielik-11B-v3.0-Instruct"],
    "gemma4": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "minicpm5": ["openbmb-MiniCPM5-1B"],
    "glm": ["GLM-4.6", "GLM-4.7-Flash", "poolside-Laguna-S-2.1", "inclusionai-ling-3.0-flash"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
                "unsloth-mistral-Devstral-Small-2507", "mistralai-Ministral-3-14B-Reasoning-2512"],
    "harmony": ["openai-gpt-oss-120b"],
    "llama3": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"],
    "llama3.2": ["meta-llama-Llama-3.2-3B-Instruct"],
    "lfm2": ["LFM2.5-8B-A1B"],
    "deepseek": ["deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"],
    "deepseek-dsml": ["deepseek-ai-DeepSeek-V3.2"],
    "deepseek-v4": ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"],
    "minimax": ["MiniMax-M2"], "seed": ["ByteDance-Seed-OSS"], "kimi": ["moonshotai-Kimi-K2"],
}
# Templates that leave the text beside a call out, or make reasoning of it.
DROPS_TEXT = {"llama3", "llama3.2", "mistral", "harmony",
              "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"}


def templates():
    """(id, syntax or None, template) of everything that is there."""
    found = []
    for f in sorted(SHARED.glob("data/tokenizers/*/tokenizer_config.json")) + \
            sorted(SHARED.glob("models/*/tokenizer_config.json")) + \
            sorted(CACHE.glob("models/*/tokenizer_config.json")):
        text = json.loads(f.read_text()).get("chat_template")
        if text:
            found.append((f.parent.name, None, text))
    for folder in PEERS[-1:]:
        found += [(name, syntax, (folder / f"{name}.jinja").read_text())
                  for syntax, names in FAMILIES.items() for name in names
                  if (folder / f"{name}.jinja").exists()]
    return found


FOUND = templates()


def calls_of(talk):
    return [{"id": f"abcdef{i:03}", "type": "function", "function": {
        "name": name, "arguments": json.dumps(args, ensure_ascii=False)}}
        for i, (name, args) in enumerate(talk)]


def ids_of(text, special):
    table = {name: wire.special_id(i) for i, name in enumerate(special)}
    if not table:
        return list(text.encode())
    out = []
    for part in re.split("(" + "|".join(map(re.escape, sorted(table, key=len, reverse=True))) + ")", text):
        out += [table[part]] if part in table else list(part.encode())
    return out


def without_end(text):
    while True:
        cut = text.rstrip()
        for end in ENDS:
            cut = cut.removesuffix(end)
        if cut == text:
            return text
        text = cut


class Talk:
    """user, assistant with calls, results; and what of it the model would have made."""

    def __init__(self, server, talk, text):
        self.server, self.calls = server, calls_of(talk)
        self.user = [{"role": "user", "content": "hi"}]
        self.said = {"role": "assistant", "content": text or None, "tool_calls": self.calls}
        self.results = [{"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"],
                         "content": f"RESULT{i}"} for i, c in enumerate(self.calls)]

    def render(self, messages, generation=True):
        r = wire.post(self.server, "/apply-template", {
            "messages": messages, "tools": TOOLS, "add_generation_prompt": generation})
        return (r.json()["prompt"], None) if r.status == 200 else (None, r.error()["message"])

    def whole(self, message):
        return self.render(self.user + [message] + self.results)

    def answer(self):
        """What the template writes for the assistant's turn, as the model's answer."""
        asked, _ = self.render(self.user)
        told, _ = self.render(self.user + [self.said], False)
        if told is None:
            told = self.whole(self.said)[0]
            told = told[:told.index("RESULT0")]
        n = len(os.path.commonprefix([asked, told]))
        tag = told.rfind("<", 0, n)
        if tag >= 0 and ">" not in told[tag:n]:  # two tags that differ after their beginning
            n = tag
        text = without_end(told[n:])
        if asked.endswith("</think>"):  # opened and closed by the prompt
            text = text.removeprefix("</think>")
        inside = asked.rstrip().endswith("<think>")  # the prompt opens reasoning, the history may not
        return ("" if not inside or text.lstrip().startswith("</think>") else "</think>\n\n") + text


@pytest.mark.skipif(not FOUND, reason=f"no templates in {SHARED} and {CACHE}")
@pytest.mark.parametrize("name,syntax,template", FOUND, ids=[f[0] for f in FOUND])
def test_calls_survive_the_template(launch, tmp_path, name, syntax, template):
    special = [s for s in SPECIAL if s in template]
    wire.write_tokenizer(tmp_path, template, special)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|bos|>"}))
    server, refused, done = launch(tmp_path, "--ctx", 30000), [], 0
    try:
        for kind, talk in TALKS.items():
            for text in ("", "I look."):
                t = Talk(server, talk, text)
                before, error = t.whole(t.said)
                if before is None:
                    refused.append(error)
                    continue
                answer = t.answer()
                r = wire.post(server, "/v1/chat/completions", {"tools": TOOLS, "messages": [
                    {"role": "user", "content": wire.script(ids_of(answer, special))}]})
                assert r.status == 200, r
                m = r.json()["choices"][0]["message"]
                got = [(c["function"]["name"], json.loads(c["function"]["arguments"]))
                       for c in m.get("tool_calls") or []]
                shown = talk if len(talk) == 1 or '"now"' in answer or "now" in answer else talk[:1]
                assert got == shown, (kind, answer, got)
                if {name, syntax} & DROPS_TEXT:
                    assert (m.get("content") or m.get("reasoning") or "") in ("", text)
                else:
                    assert (m.get("content") or "") == text, answer
                m["tool_calls"] = [{**c, "id": o["id"]} for c, o in zip(m["tool_calls"], t.calls)] + \
                    t.calls[len(got):]
                m["content"] = m.get("content") or text or None
                m.pop("reasoning", None)
                assert t.whole(m)[0] == before
                done += 1
    finally:
        assert server.stop()[0] == 0
    # Llama 3's template refuses two calls in a turn, with these words.
    assert all("single tool-calls" in e for e in refused), refused
    assert done >= 4
