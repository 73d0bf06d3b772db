//! `test_memcg_sock`: what a connection has in its buffers is the group's, and goes with the
//! connection.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use memcg::{Group, Limits, StatKey};

use super::pages::Page;
use super::{Cell, PAGE, assert_sound, create, stat, values_close};
use crate::support::reclaimers::{MIB, lock};

/// Bytes that the buffers of both ends hold, as the kernel's `tcp_rmem` has it by default.
const ROOM: usize = (6 * MIB / PAGE) as usize;

#[derive(Default)]
struct Buffers {
    pages: VecDeque<Page>,
    closed: bool,
}

/// A connection: one end writes, the other reads; each page that is under way is charged.
struct Socket {
    group: Group,
    buffers: Mutex<Buffers>,
    changed: Condvar,
}

impl Socket {
    fn of(group: &Group) -> Socket {
        Socket {
            group: group.clone(),
            buffers: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits for room; false once the other end has closed (ECONNRESET). The page is charged when
    /// there is room for it, so no sender charges while the buffers are full.
    fn write(&self) -> bool {
        let blocked = |buffers: &mut Buffers| buffers.pages.len() == ROOM && !buffers.closed;
        let room = self
            .changed
            .wait_while(lock(&self.buffers), blocked)
            .unwrap_or_else(PoisonError::into_inner);
        let open = !room.closed;
        drop(room);
        if open {
            let page = Page::of(&self.group, StatKey::SOCK).expect("no limit");
            lock(&self.buffers).pages.push_back(page);
            self.changed.notify_all();
        }
        open
    }

    /// So many pages, once there is no room for more.
    fn read(&self, pages: usize) {
        let mut buffers = self.full();
        let read: Vec<Page> = buffers.pages.drain(..pages).collect();
        self.changed.notify_all();
        drop(buffers);
        drop(read);
    }

    fn full(&self) -> MutexGuard<'_, Buffers> {
        let filling = |buffers: &mut Buffers| buffers.pages.len() < ROOM;
        self.changed
            .wait_while(lock(&self.buffers), filling)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        lock(&self.buffers).closed = true;
        self.changed.notify_all();
    }
}

/// `test_memcg_sock` in `test_memcontrol.c`, with `tcp_server` and `tcp_client`: a server writes
/// for as long as it can, a client reads a MiB 16 times and looks whether current has grown by what
/// *sock* says. The kernel's test passes with one look that finds it so; here each does, for the
/// client waits until the server cannot go on. Closed, nothing is left.
fn test_memcg_sock(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    let allocated = group.usage();
    let socket = Socket::of(&group);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| while socket.write() {});
        for _ in 0..16 {
            socket.read((MIB / PAGE) as usize);
            drop(socket.full());
            let sock = stat(&group, StatKey::SOCK);
            for current in [group.usage(), group.live()] {
                assert!(
                    values_close(current - allocated, sock, 10),
                    "{current} - {allocated}, and {sock} in buffers"
                );
            }
        }
        socket.close();
        server.join().expect("no panic");
    });
    drop(socket);
    assert_eq!((stat(&group, StatKey::SOCK), group.live()), (0, 0));
    assert_sound(&runtime);
}

matrix! { test_memcg_sock }
