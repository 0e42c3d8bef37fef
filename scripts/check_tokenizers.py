"""Writes what the library `tokenizers` makes of random and hostile strings, for tests/text/tokenizer_check.cpp.

check_tokenizers.py cases TOKENIZER.JSON OUT [COUNT [SEED]]   strings, their tokens and the text decoded from them;
                                                              conversations, as the file's chat template renders them
check_tokenizers.py speed TOKENIZER.JSON FILE...              MB/s of CPU time on text files, on one thread
check_tokenizers.py change TOKENIZER.JSON smollm2|mistral     gives GPT-2's file the pre_tokenizer of SmolLM2, or Llama 2's
                                                              that of newer Mistral files
"""

import json
import os
import random
import sys
import time
import unicodedata

os.environ["RAYON_NUM_THREADS"] = "1"

from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

WORDS = (
    "the whale Swam don't I'll we've it's THEY'RE can't O'Neil 's 'S 'ſ K\u212a naïve café Straße ﬁne ŉ 12 345 6789 "
    "3.14 1,000,000 x=y+1; if(a&&b){return;} // comment <tag> </s> <s> [INST] #include <|x|> http://a.b/c?d=e&f "
    "你好世界 日本語テキスト 한국어 привет мир שלום مرحبا สวัสดี हिन्दी ไทย Ελληνικά 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 e\u0301 a\u0308\u0323 "
    "\u1112\u1161\u11ab Ⅷ ½ ² ① ٣ 𝟘 ａｂｃ ﷽ İstanbul Σίσυφος \u180e \u200b \u200d \ufeff \u00a0 \u3000 \u2028 \u0085 "
    "▁ ▁▁ Ġ Ċ <0x0A> <0xE2> <unk> _under_score_ camelCase snake_case"
).split(" ")
SPACES = [" ", "  ", "   ", " " * 17, "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\v\f"]
RANGES = [
    (0x00, 0x20), (0x20, 0x7F), (0x7F, 0x100), (0x100, 0x250), (0x2B0, 0x370), (0x370, 0x590), (0x590, 0x900),
    (0x900, 0xE00), (0xE00, 0x1200), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2200),
    (0x2200, 0x2C00), (0x3000, 0x3100), (0x3400, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0xFB00, 0x10000),
    (0x10000, 0x11000), (0x11000, 0x14000), (0x1D000, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x32000), (0xE0000, 0xE0200),
]  # fmt: skip
MARKS = [chr(c) for c in (*range(0x300, 0x370), *range(0x591, 0x5BE), *range(0x64B, 0x656), 0x93C, 0x94D, 0x3099, 0x309A)]


def character(rng, low=0, high=0x110000):
    while True:
        code = rng.randrange(low, high)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def words(rng, added):
    return "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", rng.choice(SPACES)]) for _ in range(rng.randrange(1, 30)))


def any_characters(rng, added):
    return "".join(character(rng) for _ in range(rng.randrange(1, 40)))


def one_range(rng, added):
    low, high = rng.choice(RANGES)
    return "".join(character(rng, low, high) for _ in range(rng.randrange(1, 60)))


def mixed(rng, added):
    parts = []
    for _ in range(rng.randrange(1, 20)):
        parts.append(rng.choice([words, any_characters, one_range, runs, marks])(rng, added)[: rng.randrange(1, 12)])
    return "".join(parts)


def runs(rng, added):
    return "".join(
        rng.choice([" ", "\n", "\t", "a", "A", "1", ".", "-", "=", "é", "漢", "👍", "\u0301", "'", "▁"]) * rng.choice([1, 2, 3, 7, 16, 50, 200])
        for _ in range(rng.randrange(1, 8))
    )


def marks(rng, added):
    return "".join(
        rng.choice([character(rng, *rng.choice(RANGES)), rng.choice("aeioucnAEIOU가각かは")]) + "".join(rng.choices(MARKS, k=rng.randrange(0, 5)))
        for _ in range(rng.randrange(1, 20))
    )


def with_added(rng, added):
    parts = [rng.choice([words, mixed, runs])(rng, added)[: rng.randrange(0, 20)]]
    for _ in range(rng.randrange(1, 6)):
        token = rng.choice(added) if added else "<|none|>"
        parts.append(rng.choice([token, token, token, token[:-1], token[1:], token.upper(), token + token]))
        parts.append(rng.choice(["", "", " ", "\n", "  ", rng.choice([words, mixed])(rng, added)[: rng.randrange(0, 20)]]))
    return "".join(parts)


def digits(rng, added):
    return "".join(rng.choice("0123456789 .,-²½Ⅷ٣\U0001d7d8") for _ in range(rng.randrange(1, 40)))


def code(rng, added):
    lines = []
    for _ in range(rng.randrange(1, 6)):
        lines.append(" " * rng.randrange(0, 13) + rng.choice(WORDS) + rng.choice(["(", " = ", "{", "->", "::"]) + rng.choice(WORDS))
    return rng.choice(["\n", "\r\n", "\n\n"]).join(lines)


KINDS = [words, words, any_characters, one_range, one_range, mixed, mixed, runs, marks, with_added, with_added, digits, code]


def strings(seed, count, added):
    """Strings that depend on nothing but the arguments."""
    rng = random.Random(seed)
    yield from ["", " ", "a", "\n", "\0"]
    for number in range(count - 5):
        yield KINDS[number % len(KINDS)](rng, added)


CONVERSATIONS = [
    [("user", "What is a whale?")],
    [("system", "Be brief. "), ("user", "  Two  spaces, and a\nline break \n")],
    [("user", "What is a whale?"), ("assistant", "A mammal."), ("user", "Really?")],
    [("system", "You are\na poet."), ("user", "One?"), ("assistant", "  Two. \n"), ("user", "Three?"), ("assistant", "4"), ("user", "\u3000Five?")],
]  # fmt: skip


def chats(folder):
    """What the Jinja template beside a tokenizer makes of conversations; nothing without a template."""
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    template = config.get("chat_template")
    if not isinstance(template, str):
        return
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = lambda message: (_ for _ in ()).throw(ValueError(message))
    compiled = environment.from_string(template)
    tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token")}
    for messages in CONVERSATIONS:
        chat = [{"role": role, "content": content} for role, content in messages]
        try:
            yield {"chat": messages, "text": compiled.render(messages=chat, add_generation_prompt=True, **tokens)}
        except ValueError:
            yield {"chat": messages, "text": None}


def write_cases(path, out, count, seed):
    tokenizer = Tokenizer.from_file(path)
    added = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
    whole = tokenizer.encode("a").ids
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    at = next(i for i in range(len(whole) + 1) if whole[i : i + len(plain)] == plain)
    with open(out, "w", encoding="utf-8") as file:
        print(json.dumps({"before": whole[:at], "after": whole[at + len(plain) :]}), file=file)
        for text in strings(seed, count, added):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assigned, unassigned = ["".join(sorted({c for c in text if (unicodedata.category(c) == "Cn") == wanted})) for wanted in (False, True)]
            case = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids), "assigned": assigned, "unassigned": unassigned}
            print(json.dumps(case), file=file)
        for chat in chats(os.path.dirname(path)):
            print(json.dumps(chat), file=file)
        rng = random.Random(seed + 1)
        numbers = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
        for _ in range(max(20, count // 10)):
            tokens = rng.choices(numbers, k=rng.randrange(1, 20))
            print(json.dumps({"tokens": tokens, "decoded": tokenizer.decode(tokens)}), file=file)


def measure(path, files):
    tokenizer = Tokenizer.from_file(path)
    texts = [open(file, encoding="utf-8", newline="").read() for file in files]
    size = sum(len(text.encode()) for text in texts)
    start = time.process_time()
    encoded = [tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
    seconds = time.process_time() - start
    start = time.process_time()
    for ids in encoded:
        tokenizer.decode(ids)
    back = time.process_time() - start
    print(f"encodes {size / seconds / 1e6:.1f} MB/s ({sum(map(len, encoded))} tokens), decodes {size / back / 1e6:.1f} MB/s")


def change(path, like):
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    if like == "smollm2":
        digits = {"type": "Digits", "individual_digits": True}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}
    else:
        tokenizer["normalizer"] = None
        tokenizer["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)


def main():
    command, path, *rest = sys.argv[1:]
    if command == "cases":
        write_cases(path, rest[0], int(rest[1]) if len(rest) > 1 else 10000, int(rest[2]) if len(rest) > 2 else 1)
    elif command == "speed":
        measure(path, rest)
    elif command == "change":
        change(path, rest[0])
    else:
        sys.exit(__doc__)


main()
