//! The socket's file: made without a moment in which a process connects that may not, and removed
//! by its owner alone.
//!
//! The file has its own name from the beginning, so a path may be as long as `bind` takes. Linux
//! makes it with the permissions that the socket has, so these are set before. Permissions that are
//! set later are too late: a process whose connection has passed the look at them gets in when the
//! socket listens, also where it is set between the two. Other systems have no better, and there
//! they are set between the two.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

/// Connections that the system keeps until they are accepted; it may keep fewer.
const BACKLOG: i32 = 1_024;
/// A call tries the lock of the folder so often, with such a rest between.
const LOCK_TRIES: u32 = 100;
const LOCK_REST: Duration = Duration::from_millis(10);

/// A socket's file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// The device and the number of the file. A bound socket keeps its file, so no other file has
    /// the number.
    identity: (u64, u64),
    _bound: UnixListener,
}

impl SocketFile {
    /// Binds with these permissions, and listens. It waits for no other process, but for one that
    /// is in this function for the same folder, and for that one second at most.
    pub(super) fn bind(path: &Path, mode: u32) -> io::Result<(SocketFile, UnixListener)> {
        path.file_name().ok_or(ErrorKind::InvalidInput)?;
        // The standard library's own bound on a path, so that its clients can connect.
        SocketAddr::from_pathname(path)?;
        let address = SocketAddrUnix::new(path)?;
        let _turn = lock_folder_of(path);
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(ErrorKind::AlreadyExists.into());
            }
            Ok(_) if is_served(&address)? => return Err(ErrorKind::AddrInUse.into()),
            // A socket that no process serves is what an earlier run has left.
            Ok(_) => fs::remove_file(path)?,
            Err(fault) if fault.kind() == ErrorKind::NotFound => {}
            Err(fault) => return Err(fault),
        }
        let socket = new_socket()?;
        // Less what the process's mask takes away. Other systems refuse it.
        let _ = rustix::fs::fchmod(&socket, Mode::from_bits_truncate(mode as _));
        rustix::net::bind(&socket, &address)?;
        let listen = || {
            let there = fs::symlink_metadata(path)?;
            fs::set_permissions(path, Permissions::from_mode(mode))?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok((there.dev(), there.ino()))
        };
        let identity = listen().inspect_err(|_: &io::Error| drop(fs::remove_file(path)))?;
        let listener = UnixListener::from(socket);
        let bound = listener.try_clone()?;
        Ok((
            SocketFile {
                path: path.to_path_buf(),
                identity,
                _bound: bound,
            },
            listener,
        ))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another server's is there by now.
    pub(super) fn remove(&self) {
        let _turn = lock_folder_of(&self.path);
        let is_own = fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == self.identity);
        if is_own {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// True if a process serves the address, or may: it listens and takes no more, or it is a socket of
/// another kind.
fn is_served(address: &SocketAddrUnix) -> io::Result<bool> {
    let socket = new_socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, address) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(Errno::ACCESS | Errno::PERM) => Err(ErrorKind::PermissionDenied.into()),
        Ok(()) | Err(_) => Ok(true),
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    #[cfg(not(target_vendor = "apple"))]
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    #[cfg(target_vendor = "apple")]
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    #[cfg(target_vendor = "apple")]
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// Servers that look at a file of one folder and then replace or remove it do so one after the
/// other. The lock is an advice among them: where the folder cannot be opened, or another program
/// keeps it locked, they go on without.
fn lock_folder_of(path: &Path) -> Option<File> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    for _ in 0..LOCK_TRIES {
        match lock(&folder) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_REST),
            Err(_) => return None,
        }
    }
    None
}

#[cfg(not(any(target_os = "solaris", target_os = "illumos")))]
fn lock(folder: &File) -> rustix::io::Result<()> {
    rustix::fs::flock(folder, rustix::fs::FlockOperation::NonBlockingLockExclusive)
}

#[cfg(any(target_os = "solaris", target_os = "illumos"))]
fn lock(_: &File) -> rustix::io::Result<()> {
    Ok(())
}
