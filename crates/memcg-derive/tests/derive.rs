//! The macro on types of every form.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use memcg::Weigh;

struct Foreign;

#[derive(Weigh)]
struct Named<'a, T, const N: usize>
where
    T: Copy,
{
    text: String,
    items: [T; N],
    fixed: &'static str,
    borrowed: &'a str,
    r#type: u8,
    #[weigh(skip)]
    _foreign: &'a Foreign,
}

#[derive(Weigh)]
struct Tuple(String, #[weigh(skip)] Foreign, Vec<u16>);

#[derive(Weigh)]
struct Unit;

#[derive(Weigh)]
enum Any {
    Nothing,
    Tree(Box<Any>, Box<Any>),
    Table {
        rows: HashMap<u32, String>,
        #[weigh(owned)]
        owned: Rc<[u8]>,
        shared: Arc<String>,
    },
}

#[derive(Weigh)]
enum Never {}

#[test]
fn fields_add_up() {
    let named = Named {
        text: "abc".into(),
        items: [1_u8, 2],
        fixed: "fixed",
        borrowed: "b",
        r#type: 0,
        _foreign: &Foreign,
    };
    assert_eq!(named.weigh(), 3);
    assert_eq!(Tuple("ab".into(), Foreign, vec![1, 2, 3]).weigh(), 2 + 6);
    assert_eq!(Unit.weigh(), 0);
    let leaf = || Box::new(Any::Nothing);
    assert_eq!(Any::Tree(leaf(), leaf()).weigh(), 2 * size_of::<Any>());
    let table = |shared| Any::Table {
        rows: HashMap::new(),
        owned: Rc::from([0; 100]),
        shared,
    };
    assert_eq!(table(Arc::new("counted by its owner".into())).weigh(), 100);
}

#[test]
fn types_that_hold_nothing_say_so() {
    #[derive(Clone, Copy, Weigh)]
    struct Point(u32, u32);

    const { assert!(Point::HOLDS_NOTHING && Unit::HOLDS_NOTHING && Never::HOLDS_NOTHING) };
    const { assert!(!Any::HOLDS_NOTHING && !Tuple::HOLDS_NOTHING) };
    assert_eq!(vec![Point(1, 2); 10].weigh(), 80);
}
