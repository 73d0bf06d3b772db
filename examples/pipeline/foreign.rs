//! A thread that the system makes, with a destructor that knows no Rust.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;

use memcg::Group;

use crate::allocator::numbered;

/// Runs at the thread's end, after those of Rust: frees what the thread had, and allocates.
extern "C" fn at_the_end(memory: *mut c_void) {
    // SAFETY: `body` put it there.
    #[allow(unsafe_code)]
    let had = unsafe { Box::from_raw(memory.cast::<Vec<u8>>()) };
    drop(black_box(vec![1_u8; had.len()]));
}

extern "C" fn body(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `thread` hands the group and the key over, and waits.
    #[allow(unsafe_code)]
    let (group, key) = unsafe { &*argument.cast::<(Group, libc::pthread_key_t)>() };
    let had = group.run(|| numbered(1, || Box::new(vec![0_u8; 100_000])));
    // SAFETY: the key is there until the thread has ended.
    #[allow(unsafe_code)]
    let set = unsafe { libc::pthread_setspecific(*key, Box::into_raw(had).cast()) };
    assert_eq!(set, 0);
    ptr::null_mut()
}

/// Runs such a thread in a group, which is the program's first, to its end.
#[allow(unsafe_code)]
pub(crate) fn thread(group: &Group) {
    // SAFETY: each call is given what it asks for, and the argument outlives the thread, which is
    // joined.
    unsafe {
        let mut argument = (group.clone(), 0);
        assert_eq!(
            libc::pthread_key_create(&mut argument.1, Some(at_the_end)),
            0
        );
        let mut thread = 0;
        let made = libc::pthread_create(
            &mut thread,
            ptr::null(),
            body,
            ptr::from_mut(&mut argument).cast(),
        );
        assert_eq!(made, 0);
        assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
        assert_eq!(libc::pthread_key_delete(argument.1), 0);
    }
}
