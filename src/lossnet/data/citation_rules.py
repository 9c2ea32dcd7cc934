"""Rules of references, about Cora's thirteen fields.

Written from what references look like; the weights are guesses.  Of their labels, only those of references
that train or validate were looked at, with ``lossnet rules check``.
"""

from __future__ import annotations

from lossnet.energies import (
    Rule,
    at_most_one_of,
    changes_after,
    forbids,
    in_order,
    needs,
    never_begins,
    occurs,
    once,
    spans_at_least,
    starts_with,
    suggests,
)

_INITIALS = r"[A-Z] \.(?: (?:- )?[A-Z] \.)*"
_SURNAME = r"(?:(?:de|der|van|von|la|di|du|le|Mc|O ') )*[A-Z]\w+(?: [-'] \w+)*"
_PERSON = rf"(?:{_INITIALS} {_SURNAME}|{_SURNAME} , {_INITIALS}|{_SURNAME}(?: [A-Z] \.)* {_SURNAME})"
_YEAR = r"(?:19|20)\d\d[a-z]?"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_PLACE = (
    r"(?:New York|San \w+|Los Angeles|Cambridge|Boston|Berlin|London|Paris|Amsterdam|Tokyo|Chicago|Seattle"
    r"|Pittsburgh|Princeton|Stanford|Palo Alto|Berkeley|Washington|Philadelphia|Edinburgh|Oxford|Toronto"
    r"|Montreal|Santa \w+|Vienna|Austin|USA|UK|Canada|Germany|France|Italy|Japan|Australia|Netherlands"
    r"|England"
    r"|California|Massachusetts|Texas|Pennsylvania|, (?:CA|MA|NY|NJ|PA|TX|IL|WA|DC|MD|CT|OR|AZ|FL|GA|MI|MN))"
)
#: fields that are written in lower case nowhere but in a few words of their own
_NAMES = ("author", "date", "pages", "volume", "location", "editor")


def cora() -> tuple[Rule, ...]:
    """Return the rules.

    >>> len(cora())
    32
    """
    return (
        suggests(rf"^{_PERSON}(?: (?:, and|, &|and|&|,) {_PERSON})*(?: , et al)?(?: \.)?", "author"),
        suggests(_INITIALS, "author", "editor"),
        suggests(rf"\( {_YEAR} \)(?: \.)?|{_YEAR}|{_MONTH}(?: \.)?(?: {_YEAR})?", "date"),
        suggests(r"(?:pp|pages?|p)(?: \.)?(?: \d+)?(?: (?:- )+\d+)?|\d+ (?:- )+\d+", "pages"),
        suggests(r"(?i:vol|volume|no|number)(?: \.)? \d+(?: \( \d+ \))?|\d+ \( \d+(?: - \d+)? \)", "volume"),
        suggests(r"(?i:proc|proceedings|conference|conf|symposium|symp|workshop|advances in)", "booktitle"),
        suggests(r"(?:In|in :)", "booktitle", "editor"),
        suggests(r"(?:Journal|Trans|Transactions|Letters|Annals|Magazine|Communications|Comm)", "journal"),
        suggests(r"(?i:tech(?:nical)?(?: \.)? rep(?:ort)?|ph(?: \.)? d|thesis|dissertation|memo|tr)", "tech"),
        suggests(
            r"(?:Univ|University|Dept|Department|Institute|Laboratory|Laboratories|School|College|Center)",
            "institution",
            "publisher",
        ),
        suggests(
            r"(?:Press|Springer|Verlag|Wiley|Elsevier|Kaufmann|Publishers?|Publishing|Addison|Wesley|Kluwer"
            r"|Prentice|Hall|McGraw|Holland|Academic Press|MIT Press)",
            "publisher",
        ),
        suggests(r"(?:eds?|Eds?|editors?|Editors?)(?: \.)?", "editor"),
        suggests(_PLACE, "location"),
        suggests(r"(?i:submitted|to appear|in press|in preparation|forthcoming)(?: \.)?", "note"),
        suggests(r"(?:\"|` `) .+? (?:\"|' ')", "title"),
        forbids(r"(?!pages|editors|volume|number)[a-z]{4,}", *_NAMES),
        changes_after(weight=2.0),
        never_begins(r"[^\w\s\"`(\[]"),
        once(weight=1.0),
        occurs("author", "editor", weight=2.0),
        occurs("title", weight=2.0),
        occurs("date"),
        at_most_one_of("booktitle", "journal", "tech"),
        needs("volume", "journal", weight=0.3),
        starts_with("author"),
        *(
            in_order("title", later, weight=0.5)
            for later in ("booktitle", "journal", "publisher", "pages", "volume", "location")
        ),
        spans_at_least(3, "title"),
    )
