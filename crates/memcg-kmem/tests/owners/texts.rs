//! The debug forms of containers, and the texts of errors.

use std::error::Error;

use memcg::Runtime;
use memcg_kmem::{
    KmemError, KmemSlab, KmemStore, KmemVec, NotStoredError, PerCpu, PerCpuAllocator,
};

const _: () = {
    const fn shared<T: Send + Sync + 'static>() {}
    const fn error<E: Error + Send + Sync + 'static>() {}
    shared::<KmemVec<u64>>();
    shared::<KmemSlab<u64>>();
    shared::<KmemStore>();
    shared::<PerCpu<u64>>();
    shared::<PerCpuAllocator>();
    error::<KmemError>();
    error::<NotStoredError<u64>>();
};

#[test]
fn containers_print_what_they_are() {
    let runtime = Runtime::builder().build().expect("defaults hold");
    let root = runtime.root();
    let slab = KmemSlab::<u64>::new_in(&root);
    let expected = format!(
        "KmemSlab {{ pages: 0, object_bytes: {} }}",
        slab.object_bytes()
    );
    assert_eq!(format!("{slab:?}"), expected);
    assert_eq!(
        format!("{:?}", KmemStore::new_in(&root)),
        "KmemStore { len: 0, mapped: 0, .. }"
    );
    assert_eq!(format!("{:?}", KmemVec::<u64>::new_in(&root)), "[]");
}
