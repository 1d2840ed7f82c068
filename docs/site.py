#!/usr/bin/env python3
"""The documents as a site, and the checks that hold them together.

    docs/site.py check              links and paths of sources lead somewhere, docs/README.md names every document and begins no two rows of a
                                    section with the same, a document has at most BYTES_MAX bytes, and a page of docs/design ends
                                    with its decisions, each with because, instead of and price; a promise is marked (long) if a test of
                                    it is ignored by default
    docs/site.py build MDBOOK OUT   the site in OUT, by mdBook; its links are checked, too

The table of contents is made from docs/README.md: its sections are the parts, the first cells of its tables the chapters.
Manual pages become chapters by mandoc. Nothing is written outside OUT and OUT-source.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTENTS = ROOT / "docs/README.md"
MANUAL = ROOT / "docs/man"
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
OTHERS_MANUALS = "https://manpages.debian.org/"
# A page is read in one go. Manual pages may be longer.
BYTES_MAX = 20_480


def documents():
    """Markdown of the repository, without what is built or vendored."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True)
    return [ROOT / name for name in listed.stdout.decode().split("\n") if name and (ROOT / name).is_file()]


def manuals():
    """Manual pages, without those that only name another."""
    return [page for page in sorted(MANUAL.iterdir()) if not page.read_text().startswith(".so ")]


def prose(text):
    """Text without code, in which brackets are no links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page):
    """Relative links of a page: the text, the file, the anchor."""
    for link in LINK.findall(prose(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        yield link, (page.parent / path).resolve() if path else page, anchor


def anchors(page):
    """Anchors of a page's headings, as GitHub and mdBook make them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M):
        heading = re.sub(r"\]\([^)]*\)", "", heading).strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading)))
    return found


def is_ignored(file, test):
    """Tells whether only `make test-long` runs a test."""
    source = (ROOT / file).read_text() if (ROOT / file).exists() else ""
    return re.search(rf"#\[ignore[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*fn {test}\b", source) is not None


def check():
    """Returns what is wrong, a line each."""
    wrong, named = [], {target for _, target, _ in links(CONTENTS)}
    for page in documents():
        name = page.relative_to(ROOT)
        if page.stat().st_size > BYTES_MAX:
            wrong.append(f"{name}: {page.stat().st_size} bytes, more than {BYTES_MAX}")
        for link, target, anchor in links(page):
            if not target.exists() or ROOT not in [target, *target.parents]:
                wrong.append(f"{name}: no such file: {link}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                wrong.append(f"{name}: no such heading: {link}")
        for path in re.findall(r"`((?:crates|tests|apps)/[\w./-]+\.(?:rs|c|py))\b", page.read_text()):
            if not (ROOT / path).exists():
                wrong.append(f"{name}: no such path: {path}")
        if page.is_relative_to(ROOT / "docs") and page != CONTENTS and page not in named:
            wrong.append(f"{name}: not named in docs/README.md")
    for section in re.split(r"^## +", CONTENTS.read_text(), flags=re.M)[1:]:
        rows = re.findall(r"^\| (\[.*?) \|", section, re.M)
        first = [re.search(r"\]\((.*?)\)", row)[1] for row in rows]
        wrong += [f"docs/README.md: two rows begin with {link}" for link in sorted(set(first)) if first.count(link) > 1]
    for page in sorted((ROOT / "docs/design").iterdir()):
        decisions = page.read_text().partition("\n## Decisions\n")[2]
        if not decisions:
            wrong.append(f"{page.relative_to(ROOT)}: no decisions at its end")
        for decision in re.findall(r"^\*\*.*?(?=\n\n|\Z)", decisions, re.M | re.S):
            for part in ("*Because*", "*Instead of*", "*Price:*"):
                if part not in decision:
                    wrong.append(f"{page.relative_to(ROOT)}: no {part} in: {decision[:60]}")
    for page in [ROOT / "docs/specification.md", *sorted((ROOT / "docs/specification").iterdir())]:
        for row in re.findall(r"^\|.*\|$", page.read_text(), re.M):
            if "(long)" not in row and any(is_ignored(*test) for test in re.findall(r"([\w/-]+\.rs)::(\w+)", row)):
                wrong.append(f"{page.relative_to(ROOT)}: not marked (long): {row[:60]}")
    shown = {target for page in documents() for _, target, _ in links(page)}
    for figure in sorted((ROOT / "docs/figures").iterdir()):
        if figure not in shown:
            wrong.append(f"{figure.relative_to(ROOT)}: no document shows it")
    return wrong


def title(page):
    """The first heading of a page; of a manual page its name and section."""
    if page.parent == MANUAL:
        return f"{page.stem}({page.suffix[1:]})"
    return re.search(r"^# +(.*)$", page.read_text(), re.M).group(1)


def chapters():
    """Parts of the site and their pages, in the order of docs/README.md."""
    seen, parts = {CONTENTS}, []
    for section in re.split(r"^## +", CONTENTS.read_text(), flags=re.M)[1:]:
        name, _, rest = section.partition("\n")
        pages = []
        for cell in re.findall(r"^\| (\[.*?) \|", rest, re.M):
            for link in LINK.findall(cell):
                page = (CONTENTS.parent / link).resolve()
                for one in manuals() if page == MANUAL else [page]:
                    if one not in seen:
                        seen.add(one)
                        pages.append(one)
        parts.append((name, pages))
    return parts


def staged(page, source):
    """Where the source of a page's chapter lies."""
    name = str(page.relative_to(ROOT))
    return source / (f"{name}.md" if page.parent == MANUAL else name)


def manual_link(link):
    """A link to the manual page that mandoc names: to the chapter of one of ours, or to Debian's."""
    page = MANUAL / link[1]
    if not page.exists():
        return f'"{OTHERS_MANUALS}{link[1]}"'
    named = re.match(r"\.so man\d/(\S+)", page.read_text())
    return f'"{named[1] if named else page.name}.html"'


def stage_manual(page, source):
    """A manual page as a chapter: HTML, as no Markdown keeps its layout."""
    command = ["mandoc", "-T", "html", "-O", "fragment,man=man:%N.%S", str(page)]
    made = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    made = re.sub(r'"man:([^"]+)"', manual_link, made)
    # A blank line would end the block of HTML, and what follows would be Markdown.
    made = re.sub(r"\n{2,}", lambda gap: "\n" + "&#10;" * (len(gap[0]) - 1), made)
    staged(page, source).write_text(f"# {title(page)}\n\n{made}")


def stage(source, out):
    """Copies the documents, and all that they link to, to where mdBook looks."""
    shutil.rmtree(source, ignore_errors=True)
    pages = [page for _, part in chapters() for page in part]
    written = documents()
    files = {target for page in written for _, target, _ in links(page) if target.is_file()}
    for page in {*files, *written} - set(manuals()):
        if page.is_relative_to(MANUAL) or "suites" in page.parts:
            continue
        staged(page, source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, staged(page, source))
    for page in written:
        copy = staged(page, source)
        if not copy.exists():
            continue
        text = re.sub(r"(\]\([^()\s]*?)(docs/)?man\)", lambda link: f"{link[1]}{link[2] or ''}man/pd.7.md)", copy.read_text())
        text = re.sub(r"(\]\([^()\s]*man/[\w.-]+\.\d)\)", r"\1.md)", text)
        # mdBook makes index.html of README.md, and does not tell the links.
        copy.write_text(re.sub(r"(\]\([^()\s]*)README\.md([)#])", r"\1index.md\2", text))
    (source / "docs/man").mkdir(parents=True, exist_ok=True)
    for page in manuals():
        stage_manual(page, source)
    summary = ["# Summary", "", "[PipeDevice](README.md)", "[Documents](docs/README.md)", ""]
    for name, part in chapters():
        summary += [f"# {name}", ""]
        summary += [f"- [{title(page)}]({staged(page, source).relative_to(source)})" for page in part] + [""]
    (source / "SUMMARY.md").write_text("\n".join(summary))
    missing = [page for page in manuals() if page not in pages]
    assert not missing, f"docs/README.md names no folder of manual pages: {missing}"
    (source.parent / "book.toml").write_text(
        f'[book]\ntitle = "PipeDevice"\nsrc = "{source.name}"\n'
        f'[build]\nbuild-dir = "{out}"\ncreate-missing = false\n'
        "[output.html]\nsmart-punctuation = false\n"
    )


def check_site(out):
    """Returns links of the built site that lead nowhere, a line each."""
    wrong, texts = [], {}
    for page in sorted(out.rglob("*.html")):
        texts[page] = page.read_text()
    for page, text in texts.items():
        if page.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in re.findall(r'<(?:a|img)\b[^>]*?(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{page.relative_to(out)}: no such page: {link}")
            elif anchor and target in texts and f'id="{anchor}"' not in texts[target]:
                wrong.append(f"{page.relative_to(out)}: no such heading: {link}")
    return wrong


def main():
    wrong = check()
    if not wrong and sys.argv[1] == "build":
        out = Path(sys.argv[3]).resolve()
        book = out.with_name(out.name + "-source")
        shutil.rmtree(out, ignore_errors=True)
        stage(book / "src", out)
        subprocess.run([sys.argv[2], "build", str(book)], check=True, env={**os.environ, "MDBOOK_LOG": "warn", "RUST_LOG": "warn"})
        shutil.rmtree(book)
        wrong = check_site(out)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
