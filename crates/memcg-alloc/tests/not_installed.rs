//! A program whose allocator is another one.

mod support;

#[test]
fn it_says_so() {
    assert!(!memcg_alloc::is_installed());
    let runtime = memcg::Runtime::builder().build().unwrap();
    let held = runtime.root().run(|| support::bytes(0, 10_000));
    assert_eq!(
        (runtime.root().live(), memcg_alloc::unowned_bytes()),
        (0, 0)
    );
    drop(held);
}
