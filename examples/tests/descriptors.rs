//! The example `descriptors`, run as its users run it.

use crate::prints::prints;

#[test]
fn both_limits_refuse_and_name_the_counter() {
    let stdout = prints("descriptors");
    let lines: Vec<&str> = stdout.lines().collect();
    let [tenant, process, again, open, fewer, closed] = lines[..] else {
        panic!("{stdout}")
    };
    assert!(
        tenant.starts_with("/acme refused 1") && tenant.contains(" of descriptors for /acme: "),
        "{tenant}"
    );
    for refusal in [process, again] {
        assert!(
            refusal.starts_with("/ refused 1") && refusal.contains(" of descriptors for /globex: "),
            "{refusal}"
        );
    }
    assert_eq!(open, "open: acme 3, globex 2, buffers 81920");
    assert_eq!(fewer, "without one of globex: acme 3, globex 1");
    assert_eq!(closed, "all closed: peak 5, refused 2, live 0");
}
