//! The socket's file: where it may be, who owns it, and when its permissions hold.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

use memcg::Runtime;
use memcg_observe::serve;
use rustix::fs::Mode;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use serde_json::json;

use crate::{Client, Service};

fn runtime() -> Runtime {
    Runtime::builder().build().expect("no odd setting")
}

fn answers(path: &Path) -> bool {
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    Client::new(path.to_path_buf()).ask(&get) == json!({"ok": "max\n"})
}

/// Serving works on each path on which a plain bind works.
#[test]
fn paths_as_long_as_bind_takes() {
    let runtime = runtime();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let base = folder.path().to_str().expect("a text").len() + 1;
    let mut longest = 0;
    for length in base + 1..=120 {
        let path = folder.path().join("x".repeat(length - base));
        let plain = UnixListener::bind(&path).map(|_| fs::remove_file(&path).expect("its file"));
        let served = serve(&runtime, &path);
        assert_eq!(
            plain.is_ok(),
            served.is_ok(),
            "{length} bytes: {plain:?}, {served:?}"
        );
        if let Ok(serving) = served {
            assert!(answers(serving.path()), "{length} bytes");
            longest = length;
        }
    }
    assert!(
        (90..120).contains(&longest),
        "{longest}: both kinds were tried"
    );
    assert!(
        serve(&runtime, "").is_err()
            && serve(&runtime, "/").is_err()
            && serve(&runtime, "a\0b").is_err()
    );
}

/// The file of another server, put there meanwhile, is not this one's.
#[test]
fn the_file_of_another_server_stays() {
    let service = Service::new(false);
    let path = service.serving.path().to_path_buf();
    fs::remove_file(&path).expect("an operator may");
    let other = serve(&runtime(), &path).expect("the path is free");
    drop(service.serving);
    assert!(answers(&path), "the other one is served");
    drop(other);
    assert!(!path.exists());
    // A file that came in its place.
    let serving = serve(&service.runtime, &path).expect("the path is free");
    fs::remove_file(&path).expect("an operator may");
    fs::write(&path, "mine").expect("a file");
    drop(serving);
    assert_eq!(fs::read_to_string(&path).expect("still there"), "mine");
}

/// A socket that is served in another way is in use: neither waited for nor replaced.
#[test]
fn a_listener_that_never_accepts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("a free path");
    rustix::net::listen(&listener, 0).expect("a smaller backlog");
    let connect = || {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        );
        let socket = socket.expect("a socket");
        rustix::io::ioctl_fionbio(&socket, true).expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&path).expect("a short path");
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    let taken: Vec<_> = std::iter::from_fn(|| connect().ok()).take(10_000).collect();
    assert!(taken.len() < 10_000, "the backlog is full");
    let (sender, receiver) = mpsc::channel();
    let asked = path.clone();
    thread::spawn(move || sender.send(serve(&runtime(), asked).map(drop)));
    let served = receiver
        .recv_timeout(Duration::from_secs(30))
        .expect("it does not wait for the listener");
    assert_eq!(
        served.expect_err("it is in use").kind(),
        ErrorKind::AddrInUse
    );
    let datagrams = folder.path().join("d");
    let socket = UnixDatagram::bind(&datagrams).expect("a free path");
    assert_eq!(
        serve(&runtime(), &datagrams)
            .expect_err("another kind")
            .kind(),
        ErrorKind::AddrInUse
    );
    assert!(path.exists() && datagrams.exists());
    drop((socket, listener, taken));
}

/// Many servers start at one path at once: one of them serves it, and what an earlier run has left
/// is in no one's way.
#[test]
fn one_server_of_many() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("s");
    for _ in 0..200 {
        drop(UnixListener::bind(&path).expect("the path is free"));
        let together = Barrier::new(4);
        let start = || {
            let runtime = runtime();
            together.wait();
            serve(&runtime, &path)
        };
        let started: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert_eq!(
            started.iter().filter(|served| served.is_ok()).count(),
            1,
            "{started:?}"
        );
        assert!(answers(&path));
        drop(started);
        assert!(!path.exists());
    }
}

const FOLDER: &str = "MEMCG_ENDPOINT_FOLDER";
const STARTS: usize = 2_000;

/// A process that makes files which any user may use, as some do, starts a service again and again,
/// while another user tries each file of the folder.
#[test]
fn no_connection_before_the_permissions() {
    if let Some(folder) = env::var_os(FOLDER) {
        return starts_and_intruder(&PathBuf::from(folder));
    }
    if !rustix::process::geteuid().is_root() {
        println!("left out: only root can be another user for a while");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("its own folder");
    let mut command = std::process::Command::new(env::current_exe().expect("this program"));
    command.args([
        "place::no_connection_before_the_permissions",
        "--exact",
        "--nocapture",
    ]);
    let output = command
        .env(FOLDER, folder.path())
        .output()
        .expect("this program starts again");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn starts_and_intruder(folder: &Path) {
    rustix::process::umask(Mode::empty());
    let runtime = runtime();
    let done = AtomicBool::new(false);
    let intruder = || {
        // The kernel has the user of each thread, and this one ends here.
        let other = Uid::from_raw(65_534);
        set_thread_res_uid(other, other, other).expect("root may");
        let mut tries = 0_u64;
        let mut got_in = 0;
        let own = folder.join("s");
        while !done.load(Ordering::Relaxed) {
            // A file of another name would be the same socket.
            let files = fs::read_dir(folder)
                .expect("a folder of all")
                .filter_map(|file| Some(file.ok()?.path()));
            for file in files.chain(std::iter::repeat_n(own.clone(), 20)) {
                tries += 1;
                got_in += usize::from(UnixStream::connect(file).is_ok());
            }
        }
        (tries, got_in)
    };
    let (tries, got_in) = thread::scope(|scope| {
        let intruder = scope.spawn(intruder);
        for _ in 0..STARTS {
            drop(serve(&runtime, folder.join("s")).expect("a free path"));
        }
        done.store(true, Ordering::Relaxed);
        intruder.join().expect("the other user's thread")
    });
    assert!(tries > 0 && got_in == 0, "{got_in} of {tries}");
}
