#!/usr/bin/env python3
"""Manual pages of section 5, made from the guides that describe the same files.

    docs/manuals.py write   writes them to docs/man
    docs/manuals.py check   says which of them differ from their guide
"""
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = {
    "pd.toml.5": (["configuration.md"], "PD.TOML", "configuration of the PipeDevice driver", "pd 1 , pd-run 1 , pd-policy 5"),
    "pd-policy.5": (["policy.md", "services.md", "networks.md"], "PD-POLICY", "who may connect to whom, how fast, over which path", "pd 1 , pd.toml 5"),
}


def inline(text):
    """Text without links and comments, code in bold, for roff."""
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = text.replace("\\", "\\e").replace("×", "\\(mu")
    text = re.sub(r"\*\*([^*]*)\*\*", r"\\fI\1\\fR", text)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return "\\&" + text if text.startswith((".", "'")) else text


def block(lines):
    """A paragraph, a list, a table or code."""
    if lines[0].startswith("    ") or lines[0].startswith("```"):
        code = [line for line in lines if not line.startswith("```")]
        code = [line.removeprefix("    ").replace("\\", "\\e") for line in code]
        return [".Bd -literal", *("\\&" + line if line.startswith((".", "'")) else line for line in code), ".Ed"]
    if lines[0].startswith("|"):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        heading, rows = rows[0], rows[2:]
        made = [".Bl -tag -width Ds"]
        for first, *rest in rows:
            made.append(f".It {inline(first)}")
            cells = list(zip(heading[1:], rest))
            plain = [cell for name, cell in cells if cell and not name] or [cell for _, cell in cells if cell]
            named = [f"{name.capitalize()}: {cell}" for name, cell in cells if cell and name and cell not in plain]
            made += [inline(sentence[0].upper() + sentence[1:] + ".") for sentence in plain + named]
        return made + [".El"]
    marker = re.match(r"(- |\d+\. )", lines[0])
    if marker:
        made = [".Bl -bullet" if marker[1] == "- " else ".Bl -enum"]
        for line in lines:
            item = re.match(r"(?:- |\d+\. )(.*)", line)
            made += [".It", inline(item[1])] if item else [inline(line.strip())]
        return made + [".El"]
    return [".Pp", *map(inline, lines)]


def blocks(text):
    """Lines of each block; code between fences is one."""
    found, fenced = [[]], False
    for line in text.split("\n"):
        if line.startswith("```"):
            if not fenced:
                found.append([])
            found[-1].append(line)
            if fenced:
                found.append([])
            fenced = not fenced
        elif line.strip() == "" and not fenced:
            found.append([])
        else:
            found[-1].append(line)
    return [lines for lines in found if lines]


def page(name):
    guides, title, about, others = PAGES[name]
    texts = [(DOCS / "guides" / guide).read_text().partition("\n")[2] for guide in guides]
    (first, *sections), *more = (re.split(r"^## +", text, flags=re.M) for text in texts)
    # What begins a further guide leads to the first.
    sections += [section for _, *theirs in more for section in theirs]
    made = [".\\\" Made from " + " and ".join(f"docs/guides/{guide}" for guide in guides) + " by docs/manuals.py.", ".Dd November 25, 2026", f".Dt {title} 5", ".Os PipeDevice",
            ".Sh NAME", f".Nm {name[:-2]}", f".Nd {about}", ".Sh DESCRIPTION"]
    for lines in blocks(first):
        made += block(lines)
    for section in sections:
        heading, _, rest = section.partition("\n")
        made.append(f".Ss {heading}")
        for lines in blocks(rest):
            made += block(lines)
    made.append(".Sh SEE ALSO")
    words = others.split(" ")
    made += [".Xr " + " ".join(words[i : i + 3]).rstrip() for i in range(0, len(words), 3)]
    text = "\n".join(made) + "\n"
    # Each sentence has a line of its own, outside code.
    parts = re.split(r"(\.Bd -literal\n.*?\.Ed\n)", text, flags=re.S)
    text = "".join(re.sub(r"(?<=[\w)])([.:]) (?=[A-Z])", r"\1\n", part) if n % 2 == 0 else part for n, part in enumerate(parts))
    # A paragraph begins anew after a heading and a list by itself.
    return re.sub(r"^(\.S[sh] .*\n)\.Pp\n", r"\1", text, flags=re.M)


def main():
    wrong = []
    for name in PAGES:
        path, text = DOCS / "man" / name, page(name)
        if path.exists() and path.read_text() == text:
            continue
        if sys.argv[1] == "write":
            path.write_text(text)
        else:
            wrong.append(f"docs/man/{name}: differs from its guide; run: docs/manuals.py write")
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
