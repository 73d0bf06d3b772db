//! Names of all kinds, in any order: no two groups online have one path, and a path is one line
//! that shows what it is.

use std::collections::BTreeMap;

use memcg::{Group, GroupName, Limits, Runtime};
use proptest::prelude::*;

/// A step of a group that is picked by a number.
#[derive(Clone, Debug)]
enum Step {
    Text(u8, String),
    Number(u8, u64),
    Unnamed(u8),
    /// Named as the path of another group shows that one.
    AsAnother(u8, u8),
    Offline(u8),
}

/// Letters that names are made of, and those of ids, of numbers, and of other alphabets.
const LETTERS: [char; 18] = [
    'a',
    '0',
    '1',
    '7',
    '#',
    '.',
    '-',
    ' ',
    '/',
    'é',
    '\u{301}',
    '\n',
    '\u{7f}',
    '\u{ad}',
    '\u{202e}',
    '\u{2028}',
    '\u{feff}',
    '\u{e0041}',
];

fn step() -> impl Strategy<Value = Step> {
    let text =
        prop::collection::vec(prop::sample::select(&LETTERS[..]), 0..5).prop_map(String::from_iter);
    prop_oneof![
        4 => (any::<u8>(), text).prop_map(|(parent, text)| Step::Text(parent, text)),
        1 => (any::<u8>(), 0_u64..20).prop_map(|(parent, number)| Step::Number(parent, number)),
        2 => any::<u8>().prop_map(Step::Unnamed),
        2 => any::<(u8, u8)>().prop_map(|(parent, other)| Step::AsAnother(parent, other)),
        1 => any::<u8>().prop_map(Step::Offline),
    ]
}

fn take(steps: &[Step]) {
    let runtime = Runtime::builder().build().expect("a configuration");
    let mut groups = vec![runtime.root()];
    let pick = |groups: &[Group], number: u8| groups[usize::from(number) % groups.len()].clone();
    for step in steps {
        let made = match step {
            Step::Text(parent, text) => pick(&groups, *parent).create(text, Limits::new()),
            Step::Number(parent, number) => pick(&groups, *parent).create(*number, Limits::new()),
            Step::Unnamed(parent) => {
                pick(&groups, *parent).create(GroupName::Unnamed, Limits::new())
            }
            Step::AsAnother(parent, other) => {
                let shown = pick(&groups, *other).path();
                let last = shown.rsplit('/').next().expect("a path has a slash");
                pick(&groups, *parent).create(last, Limits::new())
            }
            Step::Offline(number) => {
                let group = pick(&groups, *number);
                if group != runtime.root() && group.offline().is_ok() {
                    groups.retain(|other| *other != group);
                }
                continue;
            }
        };
        groups.extend(made);
        let mut paths = BTreeMap::new();
        for group in &groups {
            let path = group.path();
            // The standard library escapes what formats and what is no character, and marks that
            // begin a text.
            let hidden = |char: char| char != '\u{301}' && char.escape_debug().len() > 1;
            assert!(!path.contains(hidden), "{path:?}");
            let other = paths.insert(path, group);
            assert!(other.is_none(), "{group:?} and {other:?}");
        }
    }
}

proptest! {
    #![proptest_config(super::config())]

    #[test]
    fn no_two_groups_have_one_path(steps in prop::collection::vec(step(), 0..40)) {
        take(&steps);
    }
}
