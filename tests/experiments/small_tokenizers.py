"""Tokenizers of the kinds that model folders have, small enough to be made in a test."""

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

CORPUS = [
    "the cat sat on the mat, naïve café 中文字 🙂🙃 👩‍🔬 don't",
    "a cat and the other one",
] * 3


@functools.cache
def byte_level(vocab_size=300):
    """Bytes merged into tokens (GPT-2, Llama 3, Qwen, Granite): a token may cut a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre.ByteLevel.alphabet(),
        special_tokens=["<eos>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def byte_fallback():
    """Words that start with a mark, and single bytes for what has no token (Llama 2, Zamba2)."""
    words = ["<s>", "▁", "a", "b", "▁cat", "▁the", "c"]
    vocab = {word: i for i, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.post_processor = TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer


@functools.cache
def word_pieces():
    """Words and their continuations, joined and tidied up in hindsight (BERT's kind)."""
    words = ["[UNK]", "the", "cat", "##s", "do", "n't", ".", ",", "sat", "'"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def letters(count):
    """One token a letter, `count` in all, for models with a vocabulary that bytes do not fit."""
    words = ["<s>", "<eos>", *(chr(code) for code in range(ord("A"), ord("A") + count - 4))]
    words += [" ", "é"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<s>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:2]])
    tokenizer.post_processor = TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer
