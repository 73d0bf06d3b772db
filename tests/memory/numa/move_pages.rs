//! The kernel's answers for pages that the test maps and touches itself.

use std::io::ErrorKind;

use memcg::kmem::{MovePages, NodeOf, PageNode, Topology};

use super::ask;
use super::mapping::{Mapping, page_size};
use crate::support::denials::deny;

/// The kernel, where it answers.
fn kernel() -> Option<MovePages> {
    let kernel = MovePages::new();
    if let Err(error) = &kernel {
        println!("skipped: {error}");
    }
    kernel.ok()
}

/// The page is on a node, one of this machine's.
#[track_caller]
fn assert_placed(found: PageNode) {
    let machine = Topology::detect().expect("this machine");
    assert!(
        machine
            .nodes()
            .any(|node| PageNode::On(node) == found && machine.is_online(node)),
        "{found:?}"
    );
}

#[test]
fn every_kind_of_page() {
    let Some(kernel) = kernel() else { return };
    let map = Mapping::of_pages(8);
    map.write(0);
    assert_eq!(map.read(1), 0);
    map.unmap(3);
    map.write(4);
    map.protect(4);
    assert_eq!(map.read(5), 0);
    map.protect(5);
    map.write(6);
    map.release(6);
    map.protect(7);

    let found = ask(&kernel, &map.pages());
    assert_placed(found[0]);
    assert_placed(found[4]);
    use PageNode::{Unmapped, Untouched, Zero};
    assert_eq!(
        [found[2], found[6], found[7]],
        [Untouched; 3],
        "never touched, given back, never touched and protected"
    );
    assert_eq!([found[1], found[5]], [Zero; 2], "read only");
    assert_eq!(found[3], Unmapped);

    // The page that was read is written, the one that was given back is touched again.
    map.write(1);
    map.write(6);
    let found = ask(&kernel, &[map.page(1), map.page(6)]);
    found.into_iter().for_each(assert_placed);
}

#[test]
fn where_nothing_can_be_mapped() {
    let Some(kernel) = kernel() else { return };
    let last = usize::MAX & !(page_size() - 1);
    assert_eq!(
        ask(&kernel, &[0, 1 << (usize::BITS - 1), last, usize::MAX]),
        [PageNode::Unmapped; 4]
    );
}

#[test]
fn more_pages_than_one_call_takes() {
    let Some(kernel) = kernel() else { return };
    const PAGES: usize = 1_400;
    let map = Mapping::of_pages(PAGES);
    (0..PAGES)
        .filter(|page| page % 3 == 0)
        .for_each(|page| map.write(page));
    let pages = map.pages();
    for count in [0, 1, 511, 512, 513, 1_024, 1_025, PAGES] {
        let mut found = vec![PageNode::Zero; PAGES];
        kernel.look_up(&pages[..count], &mut found);
        for (page, &found) in found.iter().enumerate() {
            match page {
                page if page >= count => {
                    assert_eq!(found, PageNode::Zero, "page {page} was not asked for")
                }
                page if page % 3 == 0 => assert_placed(found),
                page => assert_eq!(found, PageNode::Untouched, "page {page}"),
            }
        }
    }
    // The answers end before the questions do.
    let mut found = [PageNode::Zero; 600];
    kernel.look_up(&pages, &mut found);
    assert_eq!(found[598], PageNode::Untouched);
}

#[test]
fn transparent_huge_pages() {
    const HUGE: usize = 2 << 20;
    let Some(kernel) = kernel() else { return };
    let map = Mapping::of(2 * HUGE, 0).expect("room for two");
    map.advise(libc::MADV_HUGEPAGE);
    // The first page of the part that is aligned. Whether a huge page comes is the system's to say;
    // the answers are true either way.
    let first = (map.page(0).next_multiple_of(HUGE) - map.page(0)) / page_size();
    map.write(first);
    assert_placed(ask(&kernel, &[map.page(first)])[0]);
}

#[test]
fn the_huge_zero_page() {
    const HUGE: usize = 2 << 20;
    let Some(kernel) = kernel() else { return };
    let map = Mapping::of(2 * HUGE, 0).expect("room for two");
    map.advise(libc::MADV_HUGEPAGE);
    let first = (map.page(0).next_multiple_of(HUGE) - map.page(0)) / page_size();
    assert_eq!(map.read(first), 0);
    assert_eq!(ask(&kernel, &[map.page(first)]), [PageNode::Zero]);
}

#[test]
fn a_page_of_hugetlb_memory() {
    const HUGE: usize = 2 << 20;
    let Some(kernel) = kernel() else { return };
    let Some(map) = Mapping::of(HUGE, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) else {
        println!("skipped: no huge page is set aside");
        return;
    };
    assert_eq!(ask(&kernel, &[map.page(0)]), [PageNode::Untouched]);
    map.write(17);
    assert_placed(ask(&kernel, &[map.page(0)])[0]);
}

#[test]
fn forbidden() {
    for (error, expected) in [
        (libc::EPERM, ErrorKind::PermissionDenied),
        (libc::EACCES, ErrorKind::PermissionDenied),
        (libc::ENOSYS, ErrorKind::Unsupported),
        (
            libc::EIO,
            std::io::Error::from_raw_os_error(libc::EIO).kind(),
        ),
    ] {
        // A filter stays with its thread.
        let thread = std::thread::spawn(move || {
            let map = Mapping::of_pages(1);
            map.write(0);
            let before = kernel();
            if !deny(libc::SYS_move_pages, error) {
                println!("skipped: no filter for system calls here");
                return;
            }
            let refused = MovePages::new().expect_err("the filter denies the call");
            assert_eq!(
                (refused.kind(), refused.raw_os_error()),
                (expected, Some(error))
            );
            if let Some(before) = before {
                assert_eq!(ask(&before, &[map.page(0)]), [PageNode::Untouched]);
            }
        });
        thread.join().expect("the test on its thread");
    }
}

#[test]
fn where_the_kernel_does_not_tell_zero_from_unmapped() {
    let thread = std::thread::spawn(|| {
        let Some(kernel) = kernel() else { return };
        let map = Mapping::of_pages(1);
        assert_eq!(map.read(0), 0);
        if deny(libc::SYS_mincore, libc::EPERM) {
            assert_eq!(ask(&kernel, &[map.page(0), 0]), [PageNode::Untouched; 2]);
        }
    });
    thread.join().expect("the test on its thread");
}
