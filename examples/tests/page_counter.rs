//! The example `page_counter`, run as its users run it.

use crate::prints::prints;

#[test]
fn it_shows_the_four_things_of_a_counter() {
    let stdout = prints("page_counter");
    let lines: Vec<&str> = stdout.lines().collect();
    let [stock, refused, nodes, rows, drained] = lines[..] else {
        panic!("{stdout}")
    };
    assert!(stock.starts_with("web     409600 live, "), "{stock}");
    assert_eq!(refused, "refused 2097152 by import");
    assert_eq!(nodes, "nodes   N0=300000 N1=200000");
    assert_eq!(rows, "rows    2000 published, 2000 exactly");
    assert!(
        drained.starts_with("drained ") && drained.ends_with(", 0 left"),
        "{drained}"
    );
}
