//! Amounts, limits and names of other types: the error says what to write.

use memcg::{Group, Limit, Limits, Weigh};

struct Plain;

fn main() {
    let group: Option<Group> = None;
    let Some(group) = group else { return };
    let _ = group.charge(7_u64); //~ E0277 `u64` is no amount of bytes … write `Bytes(n)` for a `u64`
    let _ = group.charge(7_u32); //~ E0277 `u32` is no amount of bytes … `n as usize` for a smaller integer
    let _ = group.charge(Limit::mib(1)); //~ E0277 `memcg::Limit` is no amount of bytes … `Bytes::mib(n)` … no limit
    let _ = Limits::new().max("10%"); //~ E0277 `&str` is no limit … parse::<Limit>()?
    let _ = Limits::new().max(7_i64); //~ E0277 `i64` is no limit … `n as usize` for a smaller integer
    let _ = group.create(7_usize, Limits::new()); //~ E0277 `usize` is no name of a group … write `n as u64`
    let _ = group.child(String::new()); //~ E0277 `String` is no name of a group … consider borrowing here
    let _ = <Plain as Weigh>::HOLDS_NOTHING; //~ E0277 `Plain` does not say what it weighs … `#[weigh(skip)]` on the field
}
