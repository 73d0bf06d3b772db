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
    assert_eq!(named.heap_bytes(), 3);
    assert_eq!(
        Tuple("ab".into(), Foreign, vec![1, 2, 3]).heap_bytes(),
        2 + 6
    );
    assert_eq!(Unit.heap_bytes(), 0);
    let leaf = || Box::new(Any::Nothing);
    assert_eq!(Any::Tree(leaf(), leaf()).heap_bytes(), 2 * size_of::<Any>());
    let table = |shared| Any::Table {
        rows: HashMap::new(),
        owned: Rc::from([0; 100]),
        shared,
    };
    let table = table(Arc::new("counted by its owner".into()));
    let counts = 2 * size_of::<usize>();
    assert_eq!(table.heap_bytes(), (counts + 100).next_multiple_of(8));
    assert_eq!(table.table_bytes(), 0);
}

#[test]
fn types_that_hold_nothing_say_so() {
    #[derive(Clone, Copy, Weigh)]
    struct Point(u32, u32);

    const { assert!(Point::HOLDS_NOTHING && Unit::HOLDS_NOTHING && Never::HOLDS_NOTHING) };
    const { assert!(!Any::HOLDS_NOTHING && !Tuple::HOLDS_NOTHING) };
    assert_eq!(vec![Point(1, 2); 10].heap_bytes(), 80);
}

/// A reference to a field of a packed struct does not compile.
#[test]
fn packed_structs_copy_their_fields() {
    #[derive(Weigh)]
    #[repr(C, packed)]
    struct Header<T> {
        kind: u8,
        length: T,
        #[weigh(skip)]
        _name: String,
    }

    #[derive(Weigh)]
    #[repr(Rust, packed(2))]
    struct Pair(u8, u64);

    #[derive(Weigh)]
    #[repr(C, align(16))]
    struct Aligned(String);

    let header = Header {
        kind: 1,
        length: 7_u32,
        _name: "skipped".into(),
    };
    assert_eq!((header.heap_bytes(), header.table_bytes()), (0, 0));
    const { assert!(Header::<u32>::HOLDS_NOTHING && Pair::HOLDS_NOTHING) };
    let mut pair = Pair(1, 2);
    pair.shrink_heap();
    assert_eq!(({ pair.0 }, { pair.1 }, pair.heap_bytes()), (1, 2, 0));
    assert_eq!(Aligned("abc".into()).heap_bytes(), 3);
    let kind = header.kind;
    assert_eq!(kind, 1);
}

#[test]
fn tables_in_fields_are_found_and_shrunk() {
    let mut any = Any::Table {
        rows: (0..100)
            .map(|row| (row, String::with_capacity(10)))
            .collect(),
        owned: Rc::from([0; 100]),
        shared: Arc::default(),
    };
    let Any::Table { rows, .. } = &mut any else {
        unreachable!()
    };
    rows.retain(|&row, _| row == 7);
    let thin = (any.heap_bytes(), any.table_bytes());
    any.shrink_heap();
    assert!(any.table_bytes() > 0 && any.table_bytes() < thin.1);
    assert_eq!(
        thin.0 - any.heap_bytes(),
        thin.1 - any.table_bytes() + 10,
        "the table, and the room of its one text"
    );
}
