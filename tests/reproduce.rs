//! `baton reproduce` as scripts use it: what it refuses, before it measures for minutes. What it
//! writes is tested where it is made, in baton-bench.

mod support;

use support::{Folder, run};

#[test]
fn an_unknown_figure_is_wrong_usage_and_the_known_ones_are_listed() {
    let output = run(&["reproduce", "fig5", "--quick"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for name in ["all", "table4", "fig1", "fig4", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11"]
    {
        assert!(said.contains(name), "{name}: {said}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named_at_once() {
    let folder = Folder::new("reproduce-out");
    let file = folder.write("file", "not a folder");
    let output = run(&["reproduce", "all", "--quick", "--json", "--out", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains(&file), "{output:?}");
}
