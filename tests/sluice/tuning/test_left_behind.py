"""What a changed question leaves behind is said, once."""

from sluice.tuning.left_behind import note_asked


def begun(folder, asked, *, unfinished=True):
    note_asked(folder, asked)
    (folder / "trials").mkdir()
    if unfinished:
        (folder / "trials" / "00000-000003").mkdir()


def test_differing_names_of_an_unfinished_search_are_told_once(tmp_path):
    begun(tmp_path / "one", {"pipeline": "p", "search": {"num_trials": 20, "seed": 0}})
    now = {"pipeline": "p", "search": {"num_trials": 10, "seed": 0}}

    assert note_asked(tmp_path / "two", now) == ("search.num_trials was 20, now 10",)
    assert note_asked(tmp_path / "two", now) == ()


def test_finished_searches_and_those_of_others_are_not(tmp_path):
    begun(tmp_path / "one", {"pipeline": "p", "seed": 1}, unfinished=False)
    begun(tmp_path / "two", {"pipeline": "other", "seed": 1})

    assert note_asked(tmp_path / "three", {"pipeline": "p", "seed": 2}) == ()


def test_going_on_with_the_same_search_says_nothing(tmp_path):
    asked = {"pipeline": "p", "seed": 1}
    begun(tmp_path / "one", asked)

    assert note_asked(tmp_path / "one", asked) == ()
