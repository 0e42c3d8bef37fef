"""Makes the small tokenizers of the tests, and what the library `tokenizers` makes of strings with them.

make.py writes beside itself: models.jsonl, vocabularies learned from the text below; variants.jsonl, tokenizers of these
models with other parts; golden.jsonl, the tokens of strings for each variant. Committed, so that the tests do not need
the library. Run by scripts/check-tokenizers.sh --goldens.
"""

import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
TEXT = """
The whale swam under the ship, and the sailors said: it's the old one! They'll wait; we've seen them before, don't worry.
A naïve captain (the third in 12 years) wrote 1999 letters, 345 of them in café corners, and said "I'd rather sail".
In the storm the ship went under; the sailor's hat swam. Some say the storm never ends, others say it's over at 10:45.
for i in range(100):\n    if x == i and not y:\n        return f(x, y)  # the end\n\n\tprint("done")\n
Der alte Seemann sagte: schön, daß es nicht stürmt. Le vieux marin a dit : où est la mer ? El viejo dijo: mañana.
Старый моряк сказал: море спокойно. 老水手说：大海很平静。 老いた船乗りは言った。 늙은 선원이 말했다. 🐋🐋 swam.
""" * 3

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def learned(pre_tokenizer, size, special, alphabet=(), unknown=None):
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(TEXT.split("\n"), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def make_models():
    lines = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    marks = pre_tokenizers.Metaspace("▁", "always", True)
    bytes_model = learned(lines, 420, ["<|end|>"], pre_tokenizers.ByteLevel.alphabet())
    fallback = learned(marks, 470, ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))], unknown="<unk>")
    plain = learned(marks, 180, ["<unk>"], unknown="<unk>")
    plain["merges"] = [" ".join(pair) for pair in plain["merges"]]  # as older files have them
    return {"bytes": bytes_model, "fallback": fallback, "plain": plain}


def added(content, id, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags  # fmt: skip


def byte_level(regex=True, space=False):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(of, *parts):
    return {"type": "Sequence", of: list(parts)}


def metaspace(scheme, **fields):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme} | fields


def template(before, after, tokens):
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before]
    pieces += [{"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": name, "type_id": 0}} for name in after]
    special = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in tokens.items()}
    pair = pieces + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special}


def make_variants(bases):
    size = {name: len(base["vocab"]) for name, base in bases.items()}
    with_split = lambda pattern, *more: sequence("pretokenizers", *more, split(pattern), byte_level(False))
    bytes_added = [added("<|end|>", 0), added("<|start|>", size["bytes"]), added("<think>", size["bytes"] + 1, special=False)]
    variants = {}

    def byte_variant(name, pre_tokenizer, normalizer=None, post_processor=None, tokens=bytes_added, **model):
        variants[name] = {
            "base": "bytes", "added_tokens": tokens, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor or byte_level(), "decoder": byte_level(), "model": model,
        }  # fmt: skip

    byte_variant("gpt2", byte_level())
    byte_variant("gpt2-space", byte_level(space=True))
    start = template(["<|start|>"], [], {"<|start|>": size["bytes"]})
    byte_variant("llama3", with_split(LLAMA3), post_processor=sequence("processors", byte_level(), start), ignore_merges=True)
    byte_variant("qwen2", with_split(QWEN2), {"type": "NFC"})
    byte_variant("smollm2", sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()))
    byte_variant("digits", sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level()))
    byte_variant("gpt4", sequence("pretokenizers", split(LLAMA3, "Removed", True), byte_level(False)))
    byte_variant("o200k", with_split(O200K))
    byte_variant("three-splits", with_split(r"\s*[\r\n]+|\s+(?!\S)|[\p{L}\p{M}]+| ?[\p{P}\p{S}]+", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+")))
    byte_variant("split-then-space", sequence("pretokenizers", split(r"\d+"), byte_level(space=True)))
    byte_variant("nfkc-lower", byte_level(), sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}))
    byte_variant("nfd", byte_level(), {"type": "NFD"})
    byte_variant("nfkd", byte_level(), {"type": "NFKD"})
    byte_variant("regex", sequence("pretokenizers", split(r"\b[\w']+\b|(?<=\W)\h{2}|(?>a+)b|^\t*|[^\S\n]++|x{2,3}?|.$"), byte_level(False)))
    sides = [
        added("<|end|>", 0, lstrip=True), added("<|r|>", size["bytes"], rstrip=True),
        added("<|b|>", size["bytes"] + 1, lstrip=True, rstrip=True, special=False),
        added("word", size["bytes"] + 2, single_word=True, special=False), added("wordy", size["bytes"] + 3, special=False),
        added("Größe", size["bytes"] + 4, normalized=True, special=False), added(" é", size["bytes"] + 5, special=False),
        added("ＡＢ", size["bytes"] + 6, normalized=True, special=True),
    ]  # fmt: skip
    byte_variant("added", with_split(LLAMA3), tokens=sides)
    byte_variant("added-normalized", byte_level(), sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), tokens=sides)

    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    fallback_decoder = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    documents = [added("<unk>", 0), added("<s>", 1), added("</s>", 2)]

    def fallback_variant(name, normalizer, pre_tokenizer, decoder, **model):
        variants[name] = {
            "base": "fallback", "added_tokens": documents, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": template(["<s>"], ["</s>"] if name == "yi" else [], {"<s>": 1, "</s>": 2}),
            "decoder": decoder, "model": {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True} | model,
        }  # fmt: skip

    prepended = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, mark)
    fallback_variant("llama2", prepended, None, sequence("decoders", *fallback_decoder, strip))
    fallback_variant("mistral", None, metaspace("first", split=False), sequence("decoders", *fallback_decoder, strip))
    fallback_variant("yi", mark, None, sequence("decoders", *fallback_decoder))
    fallback_variant("gemma", mark, split(" ", "MergedWithPrevious", kind="String"), sequence("decoders", *fallback_decoder))
    fallback_variant("metaspace", None, metaspace("always"), metaspace("always"))
    fallback_variant("metaspace-never", None, metaspace("never"), metaspace("never"))
    fallback_variant("metaspace-older", None, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, metaspace("always"))
    fallback_variant("ignore-merges", prepended, None, sequence("decoders", *fallback_decoder, strip), ignore_merges=True)
    fallback_variant("replace-regex", sequence("normalizers", {"type": "Replace", "pattern": {"Regex": "[0-9]{2,}|s*"}, "content": "n"}, mark), None, sequence("decoders", *fallback_decoder))  # fmt: skip

    def plain_variant(name, pre_tokenizer, **model):
        variants[name] = {
            "base": "plain", "added_tokens": [added("<unk>", 0)], "normalizer": None, "pre_tokenizer": pre_tokenizer,
            "post_processor": None, "decoder": sequence("decoders", space, {"type": "Fuse"}), "model": model,
        }  # fmt: skip

    plain_variant("unknown-fused", metaspace("always"), unk_token="<unk>", fuse_unk=True)
    plain_variant("unknown-single", metaspace("always"), unk_token="<unk>")
    plain_variant("unknown-none", metaspace("always"))
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            plain_variant(f"{behavior}{'-inverted' if invert else ''}", split(r"[0-9]|the|\W", behavior, invert), unk_token="<unk>", fuse_unk=True)
    plain_variant("split-string", split("the", "MergedWithNext", kind="String"), unk_token="<unk>", fuse_unk=True)
    plain_variant("split-empty-matches", split("s*", "MergedWithPrevious"), unk_token="<unk>")
    return variants


def whole(base, variant):
    parts = {field: value for field, value in variant.items() if field != "base"}
    return {"version": "1.0", "truncation": None, "padding": None} | parts | {"model": {"type": "BPE"} | variant["model"] | base}


PIECES = (
    "the whale |swam|The| sailor's|don't|THEY'LL|it'S|'ſ|'\u212a|naïve|nai\u0308ve|caf\u00e9|Straße|ﬁne|12|345| 6789|3.14|1,000|x=y+1;|f(x)|"
    "<tag>|<s>|</s>|<unk>|<0x0A>|<|end|>|<|start|>|<think>|<|r|>|<|b|>|word|wordy|sword|word!|Größe|GRÖSSE|Gro\u0308ße| é|ＡＢ|ab|"
    "你好|日本語|か\u3099|한국어|\u1112\u1161\u11ab|привет|שלום|\u0627\u0651\u064e|हिन्दी|👩\u200d👩\u200d👧|🇩🇪|👍🏽|e\u0301|a\u0323\u0308|Ⅷ|½|²|٣|İ|ΣΑΣ|ⓐ|"
    " |  |   |     |\t|\n|\n\n|\r\n| \n |\u00a0|\u3000|\u2028|\u0085|\u180e|\u200b|\0|\x7f|▁|▁▁|Ġ|Ċ|_|-|...|!!|aab|deadbeef|xxxx|ss|sss|of the|"
    "\u0e2a\u0e27\u0e31|\ufeff|\U0001d7d8|\U00020000"
).replace("<|", "<\x01").replace("|>", "\x01>").split("|")
PIECES = [piece.replace("\x01", "|") for piece in PIECES]


def strings(seed):
    rng = random.Random(seed)
    yield from ["a", " ", "the whale swam.  It's 12 o'clock\n\n  <|end|> </s>", "s" * 90 + " " * 70, "the" * 40]
    for _ in range(16):
        yield "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))


def golden(name, tokenizer, seed):
    around = [tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False)]
    at = next(i for i in range(len(around[0]) + 1) if around[0][i : i + len(around[1])] == around[1])
    yield {"variant": name, "before": around[0][:at], "after": around[0][at + len(around[1]) :]}
    for text in strings(seed):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        yield {"text": text, "ids": ids, "decoded": tokenizer.decode(ids)}
    rng = random.Random(seed)
    numbers = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    for _ in range(5):
        tokens = rng.choices(numbers, k=12)
        yield {"tokens": tokens, "decoded": tokenizer.decode(tokens)}


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def main():
    bases = make_models()
    variants = make_variants(bases)
    write_lines(FOLDER / "models.jsonl", [{"name": name} | base for name, base in bases.items()])
    write_lines(FOLDER / "variants.jsonl", [{"name": name} | variant for name, variant in variants.items()])
    lines = []
    for seed, (name, variant) in enumerate(variants.items()):
        tokenizer = Tokenizer.from_str(json.dumps(whole(bases[variant["base"]], variant)))
        lines += golden(name, tokenizer, seed)
    write_lines(FOLDER / "golden.jsonl", lines)


main()
