"""quern convert against outside truths: the `gguf` package's dequantizer, mlx's quantizer, mlx-lm, the
`tokenizers` package. Run by pytest; needs gguf, numpy and mlx.

QUERN_BIN      the quern program (default: builddir/src/cli/quern)
QUERN_SHARED   folder with oracle/gguf2mlx.py and data/tokenizers
QUERN_GGUF     folder with smollm2.gguf and gemma3-270m.gguf; tests of real files skip without it
"""
import json
import lzma
import os
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")
mx = pytest.importorskip("mlx.core")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("QUERN_BIN", str(ROOT / "builddir/src/cli/quern"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))

if not os.path.exists(BIN):
    pytest.skip(f"no quern program at {BIN} (set QUERN_BIN)", allow_module_level=True)

T = gguf.GGMLQuantizationType
# offsets of the half-precision scales in a block
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def convert(src, dst, *flags):
    r = subprocess.run([BIN, "convert", str(src), str(dst), *flags], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return r.stdout


def load(folder):
    out = {}
    for f in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        out.update(mx.load(str(f)))
    return out


def random_blocks(rng, fmt, rows, cols):
    n, size = gguf.constants.GGML_QUANT_SIZES[T[fmt]]
    raw = rng.integers(0, 256, (rows * cols // n, size), dtype=np.uint8)
    for at in HALVES[fmt]:
        half = (rng.normal(size=len(raw)) * 0.01).astype(np.float16)
        raw[:, at:at + 2] = half.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


def tiny(path, fmt, rng):
    """A one-layer llama whose matrices are random blocks of fmt; returns their values."""
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(256)
    w.add_feed_forward_length(512)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(["a", "b", "ab"] + [f"t{i}" for i in range(29)])
    w.add_token_merges(["a b"])
    values = {}
    for name, rows, cols in (("token_embd", 32, 256), ("blk.0.attn_q", 256, 256),
                             ("blk.0.attn_k", 128, 256), ("blk.0.attn_v", 128, 256),
                             ("blk.0.attn_output", 256, 256), ("blk.0.ffn_gate", 512, 256),
                             ("blk.0.ffn_up", 512, 256), ("blk.0.ffn_down", 256, 512)):
        raw = random_blocks(rng, fmt, rows, cols)
        values[name] = gguf.dequantize(raw, T[fmt]).astype(np.float32)
        w.add_tensor(name + ".weight", raw, raw_dtype=T[fmt])
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        w.add_tensor(name + ".weight", rng.normal(size=256).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return values


def module_values(t, name, bits):
    return np.array(mx.dequantize(t[name + ".weight"], t[name + ".scales"].astype(mx.float32),
                                  t[name + ".biases"].astype(mx.float32), group_size=32, bits=bits))


NAMES = {"token_embd": "model.embed_tokens", "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
         "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
         "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
         "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
         "blk.0.ffn_down": "model.layers.0.mlp.down_proj"}


@pytest.mark.parametrize("fmt", HALVES)
def test_format(tmp_path, fmt):
    rng = np.random.default_rng(3)
    values = tiny(tmp_path / "m.gguf", fmt, rng)
    table = convert(tmp_path / "m.gguf", tmp_path / "out")
    t = load(tmp_path / "out")
    bits = json.load(open(tmp_path / "out/config.json"))["quantization"]["bits"]
    exact = fmt not in ("Q2_K", "Q3_K", "Q6_K")
    for src, dst in NAMES.items():
        want = values[src]
        got = module_values(t, dst, bits)
        if exact:
            np.testing.assert_array_equal(got, want)
            continue
        q, s, b = mx.quantize(mx.array(want), 32, bits)
        assert mx.array_equal(t[dst + ".scales"], s.astype(t[dst + ".scales"].dtype))
        assert mx.array_equal(t[dst + ".biases"], b.astype(t[dst + ".biases"].dtype))
        if bits in (4, 8):  # mlx's CPU packs other widths from different codes
            assert mx.array_equal(t[dst + ".weight"], q)
        assert np.abs(got - want).max() < 0.1 * np.abs(want).max()
    row = next(r for r in table.splitlines() if r.startswith(fmt))
    assert ("exact" in row) == exact
    # q and k rows: (head, half, i) of the output is (head, i, half) of the file
    for src, dst, h in (("blk.0.attn_q", "q_proj", 4), ("blk.0.attn_k", "k_proj", 2)):
        w = values[src]
        want = w.reshape(h, len(w) // h // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        got = module_values(t, "model.layers.0.self_attn." + dst, bits)
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


def test_shards_and_dtype(tmp_path):
    tiny(tmp_path / "m.gguf", "Q8_0", np.random.default_rng(5))
    convert(tmp_path / "m.gguf", tmp_path / "one", "--dtype", "float32")
    a = load(tmp_path / "one")
    assert all(v.dtype in (mx.float32, mx.uint32) for v in a.values())
    index = json.load(open(tmp_path / "one/model.safetensors.index.json"))
    assert set(index["weight_map"]) == set(a)


# ---- phi3: a checkpoint of the goldens as a GGUF file and back ------------------------------------

GOLDEN = ROOT / "tests/golden"
PHI3 = {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def floats(folder):
    """The checkpoint's values, module by module, in float32."""
    t, out = load(folder), {}
    for name in t:
        module, part = name.rsplit(".", 1)
        if part != "weight":
            continue
        if module + ".scales" in t:
            out[module] = mx.dequantize(t[name], t[module + ".scales"].astype(mx.float32),
                                        t[module + ".biases"].astype(mx.float32), 64, 4)
        else:
            out[module] = t[name].astype(mx.float32)
    return out


def phi3_gguf(path, folder, values):
    c = json.load(open(folder / "config.json"))
    far, near = c["max_position_embeddings"], c["original_max_position_embeddings"]
    w = gguf.GGUFWriter(str(path), "phi3")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(far)
    w.add_rope_scaling_orig_ctx_len(near)
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_sliding_window(2047)
    w.add_rope_scaling_attn_factors((1 + np.log(far / near) / np.log(near)) ** 0.5)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    tokens = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|end|>", "▁", "a", "b", "ab",
              "▁a", "<0x0A>"]
    tokens += [f"piece{i}" for i in range(c["vocab_size"] - len(tokens))]
    kinds = gguf.TokenType
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_token_types([kinds.UNKNOWN] + [kinds.CONTROL] * 5 + [kinds.NORMAL] * 5 + [kinds.BYTE] +
                      [kinds.NORMAL] * (len(tokens) - 12))
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(3)
    w.add_add_bos_token(False)
    w.add_chat_template("{% for m in messages %}{{ '<|assistant|>\n' + m.content + '<|end|>\n' }}"
                        "{% endfor %}")
    w.add_tensor("rope_factors_long.weight", np.array(c["rope_scaling"]["long_factor"], np.float32))
    w.add_tensor("rope_factors_short.weight", np.array(c["rope_scaling"]["short_factor"], np.float32))
    for module, v in values.items():
        if module in ENDS:
            name = ENDS[module]
        else:
            layer, rest = module.removeprefix("model.layers.").split(".", 1)
            name = f"blk.{layer}.{PHI3[rest]}"
        w.add_tensor(name + ".weight", np.array(v))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_phi3_round_trip(tmp_path):
    """The same weights through GGUF: every value, mlx-lm's logits, and quern's against the golden."""
    src = GOLDEN / "tiny/phi3-longrope-q4"
    values = floats(src)
    phi3_gguf(tmp_path / "m.gguf", src, values)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    got = floats(tmp_path / "out")
    assert set(got) == set(values)
    for module in values:
        assert mx.array_equal(got[module], values[module]), module
    a = json.load(open(src / "config.json"))
    b = json.load(open(tmp_path / "out/config.json"))
    for key in a:
        if key not in ("rope_scaling", "quantization", "quantization_config", "bos_token_id",
                       "eos_token_id"):
            assert b[key] == pytest.approx(a[key]), key
    for key in a["rope_scaling"]:
        assert b["rope_scaling"][key] == a["rope_scaling"][key], key
    assert b["sliding_window"] == 2047 and b["partial_rotary_factor"] == 1
    r = subprocess.run([BIN, "parity", str(tmp_path / "out"),
                        str(GOLDEN / "float32/phi3-longrope-q4.json"), "--kl", "0.01"],
                       capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout.count("within the limits") == 2, r.stdout + r.stderr


def test_phi3_loads_in_mlx_lm(tmp_path):
    utils = pytest.importorskip("mlx_lm.utils")
    src = GOLDEN / "tiny/phi3-longrope-q4"
    phi3_gguf(tmp_path / "m.gguf", src, floats(src))
    convert(tmp_path / "m.gguf", tmp_path / "out")
    model, _ = utils.load_model(tmp_path / "out")
    golden = mx.load(str(GOLDEN / "float32/phi3-longrope-q4.safetensors"))
    doc = json.load(open(GOLDEN / "float32/phi3-longrope-q4.json"))
    ids = doc["prompts"][2]["prompt"]
    logits = model(mx.array([ids]))[0].astype(mx.float32)
    assert mx.abs(logits - golden["p2.full"]).max().item() < 1e-3


def test_phi3_tokens(tmp_path):
    """Special tokens take the white space behind them, apart from the two that do not."""
    tokenizers = pytest.importorskip("tokenizers")
    src = GOLDEN / "tiny/phi3-longrope-q4"
    phi3_gguf(tmp_path / "m.gguf", src, floats(src))
    convert(tmp_path / "m.gguf", tmp_path / "out")
    t = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert t.encode("<|assistant|>\n\n<|end|>\n").ids == [4, 5]
    assert t.encode("<|endoftext|>\n").ids == [3, 6, 11]
    config = json.load(open(tmp_path / "out/tokenizer_config.json"))
    assert "<|assistant|>" in config["chat_template"] and config["eos_token"] == "<|endoftext|>"


def real(name):
    folder = os.environ.get("QUERN_GGUF", "")
    path = pathlib.Path(folder) / name
    if not folder or not path.exists():
        pytest.skip(f"{name}: not found (set QUERN_GGUF to the folder that holds it)")
    return path


def test_smollm2_equals_the_reference_mapping(tmp_path):
    src = real("smollm2.gguf")
    script = SHARED / "oracle/gguf2mlx.py"
    if not script.exists():
        pytest.skip(f"{script} not found")
    subprocess.run([sys.executable, str(script), str(src), str(tmp_path / "ref")], check=True)
    convert(src, tmp_path / "out")
    a, b = load(tmp_path / "out"), load(tmp_path / "ref")
    assert set(a) == set(b)
    for k in a:
        assert a[k].dtype == b[k].dtype and mx.array_equal(a[k], b[k]), k
    tokenizers = pytest.importorskip("tokenizers")
    x = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    y = tokenizers.Tokenizer.from_file(str(tmp_path / "ref/tokenizer.json"))
    for text in ("Hello  world 12345\n\n\tthe end", "naïve café 北京 🙂", "<|im_start|>user\nhi<|im_end|>"):
        assert x.encode(text).ids == y.encode(text).ids


def test_smollm2_loads_in_mlx_lm(tmp_path):
    mlx_lm = pytest.importorskip("mlx_lm")
    convert(real("smollm2.gguf"), tmp_path / "out")
    model, tok = mlx_lm.load(str(tmp_path / "out"))
    model.set_dtype(mx.float32)
    logits = model(mx.array([tok.encode("The capital of France is")]))
    assert tok.decode([int(mx.argmax(logits[0, -1]))]).strip() == "Paris"


def test_gemma3_tokenizer_equals_the_official_one(tmp_path):
    official = SHARED / "data/tokenizers/gemma3/tokenizer.json.xz"
    src = real("gemma3-270m.gguf")
    if not official.exists():
        pytest.skip(f"{official} not found")
    convert(src, tmp_path / "out")
    mine = json.load(open(tmp_path / "out/tokenizer.json"))
    want = json.load(lzma.open(official))
    assert [tuple(m) for m in mine["model"]["merges"]] == [tuple(m) for m in want["model"]["merges"]]
    assert mine["model"]["vocab"] == want["model"]["vocab"]
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        assert mine[part] == want[part]
