"""What is said of an app that cannot be loaded: the name that was meant, and the line to mend."""

from pathlib import Path

import pytest

from fairlead.cli.common.app_loader import CannotLoad, load_app
from fairlead.model.errors import InvalidInput


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def written(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_a_module_that_is_nearly_right_is_told(folder: Path) -> None:
    written(folder, "loading_shop", "")
    with pytest.raises(InvalidInput, match=r"from .*; did you mean loading_shop\?$"):
        load_app("loading_shopp:app")


def test_an_app_of_another_name_is_told(folder: Path) -> None:
    written(folder, "loading_named", "from fairlead import Fairlead\nqueue = Fairlead('memory://')")
    with pytest.raises(InvalidInput, match=r"has no 'app'; its app is queue$"):
        load_app("loading_named")


def test_an_error_beneath_an_import_names_the_line_of_the_program(folder: Path) -> None:
    written(folder, "loading_deep", "import json\nx = json.loads('{')")
    with pytest.raises(CannotLoad, match=r"JSONDecodeError: .*loading_deep\.py, line 2; raised in"):
        load_app("loading_deep")


def test_a_syntax_error_says_its_place_once(folder: Path) -> None:
    written(folder, "loading_syntax", "x = 1\ndef f(:\n    pass")
    with pytest.raises(CannotLoad) as raised:
        load_app("loading_syntax")
    path = folder / "loading_syntax.py"
    assert str(raised.value) == (
        f"importing 'loading_syntax' failed: SyntaxError: invalid syntax ({path}, line 2)"
    )


def test_an_error_of_ours_names_the_line_that_led_to_it_and_no_line_of_ours(folder: Path) -> None:
    (folder / "fairlead.toml").write_text("concurency = 3")
    written(folder, "loading_toml", "from fairlead import Fairlead\n\napp = Fairlead()")
    with pytest.raises(CannotLoad) as raised:
        load_app("loading_toml")
    assert "'concurency', which Fairlead does not know; did you mean" in str(raised.value)
    assert str(raised.value).endswith(f"({folder / 'loading_toml.py'}, line 3)")
