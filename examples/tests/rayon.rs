//! The example `rayon`, run as its users run it.

use crate::prints::prints;

#[test]
fn jobs_are_charged_to_their_groups() {
    let stdout = prints("rayon");
    assert!(
        stdout
            .starts_with("1000 rows, 1000 KiB of /acme\n500 and 2000 more rows\n/globex refused "),
        "{stdout}"
    );
    assert!(stdout.ends_with(": all add up\n"), "{stdout}");
}
