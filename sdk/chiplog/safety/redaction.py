"""Hide secrets in command lines and variables, before they reach the journal. When in doubt, hide.

There are three kinds of evidence: the name before a value (`--api-key x`, `"token": "x"`, `?sig=x`), a vendor's prefix
of its tokens (`hf_…`), and text that looks random. Paths, numbers, commit hashes and words stay.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence

REDACTED = "***"
ARGUMENTS_MAX, ARGUMENT_CHARS_MAX = 200, 1_000  # limits of the result; together below the size limit of an event
_READ_CHARS_MAX = 4 * ARGUMENT_CHARS_MAX  # of one argument: redaction shortens text, so read more than the result holds
_COMMAND_CHARS_MAX = 10_000  # of a command line, which take 3 ms; the rest is omitted

# Names. A name is split into words: `HF-accessToken` has hf, access, token. Sources: the deny list of detect-secrets
# 1.5.0 (plugins/keyword.py, Apache-2.0), the rules generic-api-key, curl-auth-header and curl-auth-user of gitleaks
# (config/gitleaks.toml, MIT), and the parameters of presigned URLs of AWS, Azure and Google.
_SECRET_PARTS = (  # anywhere in the name, separators aside
    *("password", "passwd", "pwd", "passphrase", "passcode", "contrasena", "contraseña", "secret", "credential"),
    *("apikey", "authkey", "servicekey", "accountkey", "dbkey", "databasekey", "privkey", "privatekey", "clientkey"),
    *("dbpass", "databasepass", "keypass", "userpass", "accesskey", "signingkey", "encryptionkey", "licensekey"),
    *("sharedkey", "masterkey", "sshkey", "deploykey", "authorization", "bearer", "cookie", "connectionstring"),
    *("webhook", "accesstoken", "authtoken", "apitoken", "refreshtoken", "sessiontoken", "securitytoken", "signature"),
)
_SECRET_WORDS = frozenset(  # a whole word
    (
        "pass",
        "pw",
        "psw",
        "passw",
        "pat",
        "auth",
        "oauth",
        "creds",
        "cred",
        "sig",
        "sas",
        "jwt",
        "otp",
        "dsn",
        "userpwd",
    )
)
_LAST_ONLY = frozenset(("pass", "pat", "sig"))  # not secret: `--pass-through`, `--pat-length`
_NO_KEYS = frozenset(("monkey", "turkey", "donkey", "whiskey", "hockey", "jockey", "hotkey"))
# Words around `token` by which it is a piece of text: `--pad-token-id`, `--image-token`, `--token-dropout`.
_TEXT_BEFORE_TOKEN = frozenset(
    (
        *("pad", "padding", "eos", "bos", "unk", "mask", "sep", "cls", "sos", "eot", "special", "image"),
        *("audio", "video", "stop", "start", "end", "next", "first", "last", "per", "max", "min", "num", "n"),
        *("prompt", "text", "blank", "multi", "single", "class", "vision", "patch", "register", "think"),
        *("boundary", "by", "sub", "word"),
    )
)
_TEXT_AFTER_TOKEN = frozenset(
    (
        *("id", "ids", "idx", "index", "type", "types", "dropout", "embedding", "embeddings", "embed", "count"),
        *("counts", "size", "length", "len", "limit", "budget", "mixing", "shift", "level", "dim", "per"),
        *("wise", "merging", "pruning", "classification", "mixer", "ratio", "rate", "loss", "mask", "weight"),
        *("weights", "throughput"),
    )
)
# Words around `tokens` by which they are counted.
_COUNTS_OF_TOKENS = frozenset(
    (
        *("new", "total", "train", "training", "val", "eval", "test", "warmup", "target", "context", "input", "output"),
        *("generated", "global", "micro", "batch", "save", "seen", "consumed", "extra", "added", "ignore", "bad"),
        *("query", "visual", "decay", "log", "million", "billion", "seq", "sequence", "step", "completion", "ckpt"),
    )
)
_P_OPTIONS = frozenset(  # options with one dash that begin with p; anything else with -p is a password
    (
        *(
            "parallel",
            "param",
            "params",
            "partition",
            "path",
            "paths",
            "patience",
            "pdb",
            "pernode",
            "pipe",
            "pipeline",
        ),
        *("platform", "plot", "plugin", "policy", "pool", "port", "ports", "pp", "ppn", "precision", "predict"),
        *("prefix", "preset", "pretrain", "pretrained", "print", "process", "processes", "prof", "profile", "profiler"),
        *("progress", "project", "prompt", "protocol", "proxy", "prune"),
    )
)
_PLACE_WORDS = frozenset(("file", "path", "dir", "directory", "folder"))  # the path of a secret is not a secret
_ID_WORDS = frozenset(
    ("commit", "revision", "rev", "sha", "sha1", "sha256", "hash", "digest", "checksum", "md5", "id", "ref")
)
_USER_NAMES = frozenset(("u", "user", "username", "login"))  # of `user:password`
_SCHEMES = ("bearer", "basic", "token", "digest")  # of HTTP's Authorization
_PLAIN_VALUES = frozenset(("", "true", "false", "yes", "no", "on", "off", "none", "null"))

# Vendors' prefixes, and the minimum number of characters after them. Sources: the plugins of detect-secrets 1.5.0 and
# the rules of gitleaks, if they have a distinctive prefix. Other tokens are found by name, or as random text.
_PREFIXES: tuple[tuple[str, int, str], ...] = (
    ("hf_|api_org_", 16, "Hugging Face; gitleaks huggingface-access-token, -organization-api-token"),
    ("gh[pousr]_|github_pat_", 20, "GitHub; detect-secrets github_token, gitleaks github-*"),
    ("gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941", 16, "GitLab; detect-secrets gitlab_token"),
    (
        "sk-(?:ant-|proj-|svcacct-|admin-)?",
        20,
        "OpenAI, Anthropic and others; detect-secrets openai, gitleaks *-api-key",
    ),
    ("pplx-|gsk_|xai-|r8_|nvapi-|key-", 20, "Perplexity, Groq, xAI, Replicate, NVIDIA, Mailgun; gitleaks"),
    ("(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)", 12, "AWS; detect-secrets aws"),
    ("AIza|ya29\\.|GOCSPX-", 20, "Google; gitleaks gcp-api-key"),
    ("LTAI", 16, "Alibaba; gitleaks alibaba-access-key-id"),
    ("xox[abeoprs]-|xapp-", 10, "Slack; detect-secrets slack, gitleaks slack-*"),
    ("(?:sk|rk|pk)_(?:live|test|prod)_", 10, "Stripe; detect-secrets stripe"),
    ("SG\\.|xkeysib-", 20, "SendGrid, Brevo; detect-secrets sendgrid"),
    ("sq0(?:csp|atp)-", 20, "Square; detect-secrets square_oauth"),
    ("npm_|pypi-AgE|rubygems_", 20, "package indexes; detect-secrets npm, pypi_token"),
    ("AKC[p0-9A-Za-z]", 10, "Artifactory; detect-secrets artifactory"),
    ("dapi|dop_v1_|doo_v1_|dor_v1_", 24, "Databricks, DigitalOcean; gitleaks"),
    ("hvs\\.|hvb\\.|pul-|pscale_|PMAK-|lin_api_|ntn_|rdme_|dp\\.pt\\.|glsa_|NRAK-|shp(?:at|ca|pa|ss)_", 16, "gitleaks"),
    ("sntry[su]_|tfp_|fo1_|fm[12][ar]?_|pnu_|sm_[aps]at_|sgp_|dt0c01\\.|ops_eyJ|tskey-|wandb_v1_", 12, "gitleaks"),
    ("eyJ[\\w-]{8,}\\.", 8, "JSON web token; detect-secrets jwt"),
)
_HOOKS = r"(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks|webhook\.office\.com|api\.telegram\.org/bot)"

_RANDOM_CHARS_MIN = 20  # shorter random text looks like the name of an experiment
_SHA1_CHARS = 40  # of a commit, and of W&B's API key
_SHA256_CHARS = 64


class _Patterns:
    """All expressions, compiled when the first one is needed, so that importing this module is fast."""

    def __init__(self) -> None:
        vendors = "|".join(f"(?:{prefix})[\\w.+/=~-]{{{least},}}" for prefix, least, _ in _PREFIXES)
        self.vendor = re.compile(rf"(?<![A-Za-z0-9])(?:{vendors})")
        # `user:password` after its option: `--user=a:b`, `-ua:b`, and both with a space.
        self.user = re.compile(
            r"(?<![\w-])((?:--(?:user|username|login)(?:=|\s+)|-u\s*)[^\s:/\"']{1,256}:)(?!//)[^\s\"']+"
        )
        self.block = re.compile(r"(?:-----BEGIN[ \w-]{0,100}PRIVATE KEY|PuTTY-User-Key-File).*", re.S)
        # `user:password@`, also with `@` or `/` in the password; or all before the last `@` of a host.
        self.login = re.compile(r"://(?:[^/\s:@\"']{0,256}:(?!\d+(?:/|$))[^\s\"']{0,256}|[^/\s\"']{0,256})@")
        self.hook = re.compile(rf"({_HOOKS})[^\s\"']+", re.I)
        self.scheme = re.compile(r"\b(bearer)(\s+)\S+|\b(basic|token|digest|apikey)(\s+)(?=\S*[\d=])\S{8,}", re.I)
        # One name and the separator before its value: `name=`, `"name": `, `--name `. A name includes dashes, otherwise
        # each piece of `a-b-c` would be tried by itself.
        self.name = re.compile(
            r"(?<![\w.$-])(-{0,2})([A-Za-z_$][\w.$-]*)(?:(\\*[\"']?\]?\s{0,3}(?::=|=>|=|:)\s{0,3})|\s+)"
        )
        self.quoted = re.compile(r"\\*\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|\\+'[^']*'?")
        self.run = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
        self.piece = re.compile(r"[A-Za-z0-9]+")
        self.hash = re.compile(r"[0-9a-f]+(?:-[0-9a-f]+)*")
        self.uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
        self.camel = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@functools.cache
def _patterns() -> _Patterns:
    return _Patterns()


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its secrets, bounded in length."""
    shown: list[str] = []
    hides_next: Callable[[str], str] | None = None
    n_chars = 0
    for argument in arguments[:ARGUMENTS_MAX]:
        n_chars += min(len(argument), _READ_CHARS_MAX)
        if n_chars > _COMMAND_CHARS_MAX:
            shown.append("…")
            break
        # safeguard: dashed-secret-hidden
        is_value = not argument.startswith("--") if hides_next is _hide_any else not _is_option(argument)
        if hides_next is not None and is_value:
            shown.append(hides_next(argument))
            if argument.lower() not in _SCHEMES:  # `Authorization: Bearer x` without quotes: the secret comes next
                hides_next = _what_follows(argument) if _is_option(argument) else None
            continue
        hides_next = _what_follows(argument)  # safeguard: secret-option-hidden
        shown.append(redact_text(argument))
    return shown


def redact_text(text: str, chars_max: int = ARGUMENT_CHARS_MAX) -> str:
    """Return one argument, or the value of a variable, without its secrets, truncated to `chars_max`."""
    patterns = _patterns()
    text, is_cut = text[:_READ_CHARS_MAX], len(text) > _READ_CHARS_MAX
    if "PRIVATE KEY" in text or "PuTTY" in text:
        text = patterns.block.sub(REDACTED, text)
    if "://" in text:
        text = patterns.login.sub(f"://{REDACTED}@", text)
        text = patterns.hook.sub(rf"\1/{REDACTED}", text)
    text = patterns.user.sub(rf"\1{REDACTED}", text)  # safeguard: login-hidden
    text = "".join(_without_named(text))  # safeguard: named-secret-hidden
    text = patterns.scheme.sub(lambda found: f"{found[1] or found[3]}{found[2] or found[4]}{REDACTED}", text)
    text = patterns.vendor.sub(REDACTED, text)  # safeguard: vendor-token-hidden
    text = "".join(_without_random(text))  # safeguard: random-text-hidden
    if is_cut and len(text) <= chars_max:
        return REDACTED  # the cut is now inside the result: its end may be half a secret
    return text[:chars_max]


@functools.lru_cache(maxsize=256)  # of one command line: many arguments have the same names in them
def is_secret_name(name: str) -> bool:
    """Return True if the value of an option, key or variable with this name must be hidden."""
    words = _words(name)
    if not words or words[-1] in _PLACE_WORDS:
        return False
    joined = "".join(words)
    if any(part in joined for part in _SECRET_PARTS):
        return True
    last = len(words) - 1
    for index, word in enumerate(words):
        if word in _SECRET_WORDS and (index == last or word not in _LAST_ONLY):
            return True
        if word.endswith("key") and word not in _NO_KEYS and index == last:
            return True
        if word.endswith(("token", "tokens")) and not _is_text(words, index):
            return True
    return False


def _is_text(words: Sequence[str], index: int) -> bool:
    """Return True if the word `token` at this index of a name means a token of a language model."""
    after = words[index + 1] if index + 1 < len(words) else ""
    before = words[index - 1] if index else ""
    if words[index] == "tokens" and (len(words) == 1 or before in _COUNTS_OF_TOKENS or after in _COUNTS_OF_TOKENS):
        return True
    is_whole = words[index] in ("token", "tokens")
    return is_whole and (before in _TEXT_BEFORE_TOKEN or after in _TEXT_AFTER_TOKEN)  # safeguard: plain-text-readable


def _words(name: str) -> list[str]:
    """Split a name at separators and at capitals: `HF_apiKey2` is hf, api, key."""
    return [word.lower() for word in _patterns().camel.findall(name) if not word.isdigit()]


def _is_option(argument: str) -> bool:
    name = argument.lstrip("-")
    return argument != name and not name[:1].isdigit() and bool(name)


def _hide(argument: str) -> str:
    return argument if _is_plain(argument) else REDACTED


def _hide_any(argument: str) -> str:
    """Hide the value of a secret name, which may begin with one dash."""
    return _hide(argument)


def _show_hash(argument: str) -> str:
    return argument if _patterns().hash.fullmatch(argument) else redact_text(argument)


def _hide_password(argument: str) -> str:
    """Hide the second half of `user:password`."""
    user, colon, _ = argument.partition(":")
    return f"{user}:{REDACTED}" if colon and "://" not in argument else redact_text(argument)


def _what_follows(argument: str) -> Callable[[str], str] | None:
    """Return the function that redacts the next argument; None if it is treated like any other."""
    name = argument.lstrip("-")
    if name == argument:  # `Authorization: Bearer x` without quotes, `set api_key x`
        bare = name.rstrip(":")
        is_word = re.sub("[-_.]", "", bare).isalnum()
        strong = "".join(_words(bare)) if is_word else ""
        if bare.lower() in _ID_WORDS:
            return _show_hash
        return _hide if any(strong.endswith(part) for part in _SECRET_PARTS) and len(bare) < 64 else None
    if "=" in name or not name:
        return None
    if name == "p" or is_secret_name(name):  # -p: the password of mysql, docker login, smbclient and many more
        return _hide_any
    if name in _USER_NAMES:
        return _hide_password
    return _show_hash if _ID_WORDS.intersection(_words(name)[-1:]) else None


def _without_named(text: str) -> Iterator[str]:
    """Yield a text in pieces, with values after secret names hidden: `name=value`, `"name": "value"`, `--name v`."""
    if text.startswith("-p") and len(text) > 2 and re.split("[-_.= ]", text[1:], maxsplit=1)[0] not in _P_OPTIONS:
        yield f"-p{REDACTED}"  # attached, as for mysql; `--p…` is different
        return
    position = 0
    for found in _patterns().name.finditer(text):
        dashes, name, sign = found[1], found[2], found[3]
        if found.end() < position or not (is_secret_name(name) or (sign is None and dashes + name == "-p")):
            continue
        if sign is None and not dashes:
            continue  # an ordinary word
        start = found.end()
        is_argument = sign is not None and not text[: found.start(2)].strip("-+~")
        end = len(text) if is_argument else _end_of_value(text, start, found.start(2))
        value = text[start:end]
        if _is_plain(value) or (sign is None and value.startswith("--")) or (sign == ":" and value.startswith("//")):
            continue
        quote = next((mark for mark in ('"', "'") if value.lstrip("\\").startswith(mark)), "")
        yield text[position:start]
        yield f"{quote}{REDACTED}{quote}"
        position = end
    yield text[position:]


def _is_plain(value: str) -> bool:
    return value.strip("\\\"' ").lower() in _PLAIN_VALUES


def _end_of_value(text: str, start: int, name_at: int) -> int:
    """Return where the value after a secret name ends; in doubt the later position."""
    if text[start : start + 1] in ("{", "[", "("):
        return len(text)
    if quoted := _patterns().quoted.match(text, start):
        return quoted.end()
    name = text[name_at:start].lower()
    if name.startswith(("authorization", "proxy-authorization", "cookie", "set-cookie")):
        stops = "\"'\n"
    elif text[name_at - 1 : name_at] in ("?", "&"):
        stops = "&#\"' \n"
    elif "{" in text[:name_at] or "(" in text[:name_at]:
        stops = ",})\"' \n"
    else:
        stops = ";\"' \n"
    return next((at for at in range(start, len(text)) if text[at] in stops), len(text))


def _without_random(text: str) -> Iterator[str]:
    position = 0
    for found in _patterns().run.finditer(text):
        run = found[0]
        if _is_hash(text, found.start(), run) or not (_is_random(run) or _is_key(run)):
            continue
        yield text[position : found.start()]
        yield REDACTED
        position = found.end()
    yield text[position:]


def _is_hash(text: str, start: int, run: str) -> bool:
    """Return True for a commit, digest or ID: by its length, because it is in a path, or by the word before it."""
    patterns = _patterns()
    pieces = patterns.piece.findall(patterns.uuid.sub("", run))
    hashes = [piece for piece in pieces if len(piece) >= _RANDOM_CHARS_MIN]
    if not hashes or not all(_is_hex(piece) for piece in hashes):
        return False
    if all(len(piece) == _SHA256_CHARS for piece in hashes) or "/" in run or text[start - 1 : start] in ("/", "@"):
        return True
    if all(len(piece) == _SHA1_CHARS for piece in hashes) and not _is_key(run):  # safeguard: bare-40-digits-hidden
        return True  # in a name
    return bool(_ID_WORDS.intersection(_words(text[max(0, start - 32) : start])[-1:]))


def _is_key(run: str) -> bool:
    """Return True if this may be an API key of W&B: as long as a commit, with or without `local-` before it."""
    piece = run.removeprefix("local-")
    return len(piece) == _SHA1_CHARS and _is_hex(piece) and _has_digit_and_letter(piece)


def _is_hex(piece: str) -> bool:
    return all(character in "0123456789abcdef" for character in piece)


def _is_random(run: str) -> bool:
    """Return True if letters and digits alternate more than in a word, name or path.

    In random base64, 62 % of neighbours are of different classes (lower, upper, digit); in camel-case words, a third.
    detect-secrets' limit for base64 is 4.5 bits of entropy per character (plugins/high_entropy_strings.py).
    """
    run = run.rstrip("=")
    pieces = _patterns().piece.findall(run)
    longest = max(pieces, key=len, default="")
    if _changes(longest) >= 0.3 and len(longest) >= _RANDOM_CHARS_MIN and _has_digit_and_letter(longest):
        is_words = any(c.islower() for c in longest) and any(c.isupper() for c in longest)
        if not is_words or _changes(longest) >= 0.4:
            return True
    n_separators = len(run) - sum(map(len, pieces))
    has_all = any(c.islower() for c in run) and any(c.isupper() for c in run) and any(c.isdigit() for c in run)
    if not has_all or n_separators * 10 > len(run) or len(longest) < 10:
        return False
    changes = sum(_changes(piece) * (len(piece) - 1) for piece in pieces) / max(1, sum(len(p) - 1 for p in pieces))
    return changes >= 0.4 or (changes >= 0.25 and _entropy(run) >= 4.5)


def _has_digit_and_letter(piece: str) -> bool:
    return any(c.isdigit() for c in piece) and any(c.isalpha() for c in piece)


def _changes(piece: str) -> float:
    """Return the share of neighbours that are of different classes."""
    classes = [0 if c.isdigit() else 1 if c.islower() else 2 for c in piece]
    return sum(a != b for a, b in itertools.pairwise(classes)) / max(1, len(piece) - 1)


def _entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character."""
    return -sum(share * math.log2(share) for share in (text.count(c) / len(text) for c in set(text)))
