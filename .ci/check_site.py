"""Whether a built site is whole: no page loads anything from another host, and no link inside it leads nowhere."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}  # kinds of <link>


class Page(HTMLParser):
    """What one page loads, where it links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.styles = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort the addresses of one tag."""
        given = {name: value or "" for name, value in attrs}
        self.places.update(given[name] for name in ("id", "name") if name in given)
        self.loads += [given[name] for name in ("src", "data", "poster") if name in given]
        self.loads += [one.split()[0] for one in given.get("srcset", "").split(",") if one.strip()]
        self.loads += addresses(given.get("style", ""))
        self.styles = tag == "style"
        if "href" in given and (tag != "link" or LOADED & set(given.get("rel", "").lower().split())):
            (self.loads if tag in ("link", "image", "use") else self.links).append(given["href"])

    def handle_data(self, data: str) -> None:
        """Read the style sheets inside a page."""
        if self.styles:
            self.loads += addresses(data)

    def handle_endtag(self, tag: str) -> None:
        """A style sheet ends."""
        self.styles = False


def addresses(style: str) -> list[str]:
    """What a style sheet loads."""
    return [part.partition(")")[0].strip("\"' ") for part in style.split("url(")[1:]]


def is_foreign(address: str) -> bool:
    """Whether an address is on another host."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def problems(site: Path) -> list[str]:
    """Everything that is wrong with a site."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [f"there is no {site / 'index.html'}"] if not (site / "index.html").exists() else []
    for path, page in pages.items():
        found += [f"{path.name} loads {address} from another host" for address in page.loads if is_foreign(address)]
        for address in [*page.loads, *page.links]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists():
                found.append(f"{path.name} links to {address}, which is not there")
            elif place and target in pages and place not in pages[target].places:
                found.append(f"{path.name} links to {address}: there is no such place")
    for path in sorted(site.rglob("*.css")):
        loaded = addresses(path.read_text(encoding="utf-8"))
        found += [f"{path.name} loads {address} from another host" for address in loaded if is_foreign(address)]
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if found := problems(site):
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages, whole and without a network: {site / 'index.html'}")
