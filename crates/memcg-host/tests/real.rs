//! Real control groups: a service whose max follows lives through a limit that falls, one whose max
//! does not is killed. The kernel's own trigger. Where this system lets the test make no control
//! group, it says so and leaves that out, unless `CI=true` says that nothing may be that root could
//! do.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use memcg::{Bytes, Charge, Percent, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_host::{Host, HostError, MaxOfHost, StallScope};
use rustix::thread::CapabilitySet;

const ROLE: &str = "MEMCG_HOST_ROLE";
const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The file that a process reads in a group of a fourth of that.
const FILE_MIB: u64 = 128;

/// Returns whether the system let it run.
type Test = fn() -> bool;

fn main() {
    match env::var(ROLE).as_deref() {
        Ok("follows") => service(true),
        Ok("fixed") => service(false),
        Ok("leaks") => leaks(false),
        Ok("makes_room") => leaks(true),
        Ok("reads") => reads(),
        Ok("leaves") => leaves(),
        Ok("gives") => gives(),
        Ok("grows") => grows(),
        Ok("tells") => tells(),
        Ok("arms") => arms(),
        _ => {
            let tests: [(&str, Test); 12] = [
                ("an_old_stall_fires_nothing", an_old_stall_fires_nothing),
                (
                    "a_namespace_hides_the_own_group",
                    a_namespace_hides_the_own_group,
                ),
                ("the_kernels_trigger", the_kernels_trigger),
                ("the_kernels_trigger_fires", the_kernels_trigger_fires),
                (
                    "a_trigger_ends_with_its_group",
                    a_trigger_ends_with_its_group,
                ),
                ("a_service_that_follows_lives", a_service_that_follows_lives),
                (
                    "a_service_that_does_not_is_killed",
                    a_service_that_does_not_is_killed,
                ),
                ("a_leak_is_made_room_for", a_leak_is_made_room_for),
                (
                    "a_leak_without_room_is_killed",
                    a_leak_without_room_is_killed,
                ),
                (
                    "a_neighbour_fills_the_group_above",
                    a_neighbour_fills_the_group_above,
                ),
                (
                    "shared_memory_fills_the_group",
                    shared_memory_fills_the_group,
                ),
                ("page_cache_asks_nothing", page_cache_asks_nothing),
            ];
            let ran = tests.map(|(name, test)| {
                let ran = test();
                println!("test {name} ... {}", if ran { "ok" } else { "left out" });
                ran
            });
            let passed = ran.iter().filter(|ran| **ran).count();
            println!(
                "\ntest result: ok. {passed} passed; 0 failed; {} ignored",
                ran.len() - passed
            );
        }
    }
}

// === The service ===

/// Blocks that it gives back, the last first: the allocator then gives the end of its heap back to
/// the system.
struct Cache(Mutex<Vec<(Vec<u8>, Charge)>>);

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut blocks = self.0.lock().expect("no panic");
        let mut freed = 0;
        while freed < want
            && let Some((_, charge)) = blocks.pop()
        {
            freed += charge.bytes();
        }
        freed
    }
}

/// Waits for a line, builds a runtime for half of the memory that it is granted, and prints its max
/// whenever that has changed. From the line `fill` on it fills a cache as far as it may. It ends
/// with its input.
fn service(follows: bool) {
    let (lines, said) = mpsc::channel();
    thread::spawn(move || {
        std::io::stdin()
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| lines.send(line))
    });
    said.recv().expect("a first line");
    let (runtime, follow) = Runtime::builder()
        .batch(Bytes(0))
        .max_of_host("50%")
        .expect("a share")
        .build()
        .expect("a host");
    let _follow = follows.then_some(follow);
    let root = runtime.root();
    let cache = Arc::new(Cache(Mutex::default()));
    let _registration = root.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
    let mut shown = 0;
    let mut fills = false;
    loop {
        match said.try_recv() {
            Ok(_) => fills = true,
            Err(mpsc::TryRecvError::Disconnected) => break,
            Err(mpsc::TryRecvError::Empty) => {}
        }
        let max = root.max();
        if shown != max {
            println!("max {max}");
            shown = max;
        }
        if fills && root.headroom() >= MIB {
            let charge = root
                .charge(Bytes(MIB))
                .expect("there is room, and one thread charges");
            let block = vec![1_u8; MIB as usize];
            cache.0.lock().expect("no panic").push((block, charge));
        } else {
            if fills {
                println!("full {}", root.live());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Fills a cache with 80 % of the memory that it is granted. From the line `leak` on it leaks 2 MiB
/// after the other, 200 MiB in all, that no group is charged for, and says so. Its max may be less
/// those bytes.
fn leaks(makes_room: bool) {
    let mut input = BufReader::new(std::io::stdin()).lines();
    input.next();
    let builder = Runtime::builder()
        .batch(Bytes(0))
        .max_of_host("80%")
        .expect("a share");
    let builder = if makes_room {
        builder.less_uncharged()
    } else {
        builder
    };
    let (runtime, follow) = builder.build().expect("a host");
    let root = runtime.root();
    let cache = Arc::new(Cache(Mutex::default()));
    let _registration = root.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
    while root.headroom() >= 32 * MIB {
        let Ok(charge) = root.charge(Bytes(MIB)) else {
            break;
        };
        let block = vec![1_u8; MIB as usize];
        cache.0.lock().expect("no panic").push((block, charge));
    }
    println!("full");
    input.next();
    let mut leaked = Vec::new();
    for _ in 0..100 {
        leaked.push(vec![1_u8; 2 * MIB as usize]);
        thread::sleep(Duration::from_millis(20));
    }
    // The figure is smoothed: it gets there in a second or two.
    thread::sleep(Duration::from_secs(2));
    let refused = root
        .charge(Bytes(follow.state().granted))
        .expect_err("more than is left")
        .to_string();
    let is_told = refused.contains("memory that is not charged holds");
    println!(
        "leaked {} {} {is_told}",
        leaked.len() * 2,
        follow.state().uncharged / MIB
    );
    input.next();
}

/// Says whether the kernel's trigger has fired, while a thread reads a file that is larger than the
/// group's limit, again and again.
fn reads() {
    let mut input = BufReader::new(std::io::stdin()).lines();
    input.next();
    let trigger = match Host::new().trigger(
        StallScope::Some,
        Duration::from_millis(10),
        Duration::from_secs(2),
    ) {
        Ok(trigger) => trigger,
        Err(fault) => return println!("none: {fault}"),
    };
    assert!(
        !trigger.wait(Duration::ZERO).expect("the file stays"),
        "no task waits for memory yet"
    );
    println!("set");
    input.next();
    thread::spawn(|| {
        let mut file = tempfile::tempfile().expect("a temporary folder");
        let block = vec![1_u8; MIB as usize];
        (0..FILE_MIB)
            .try_for_each(|_| file.write_all(&block))
            .expect("room on the disk");
        let mut block = block;
        loop {
            file.rewind().expect("a file");
            while file.read(&mut block).expect("a file") > 0 {}
        }
    });
    println!("fired {}", trigger.wait(PATIENCE).expect("the file stays"));
}

/// Loses time to memory until it has lost far more than a trigger asks for. Then arms that trigger
/// without the capability that the kernel wants to see, loses a little more, and says how long it has
/// lost since and whether the trigger has fired.
fn arms() {
    const STALL: Duration = Duration::from_millis(300);
    let mut input = BufReader::new(std::io::stdin()).lines();
    input.next();
    let host = Host::new();
    let lost = || host.pressure().map_or(Duration::ZERO, |now| now.some.total);
    let reads = Arc::new(AtomicBool::new(true));
    let reading = Arc::clone(&reads);
    thread::spawn(move || {
        let mut file = tempfile::tempfile().expect("a temporary folder");
        let mut block = vec![1_u8; MIB as usize];
        (0..FILE_MIB)
            .try_for_each(|_| file.write_all(&block))
            .expect("room on the disk");
        loop {
            file.rewind().expect("a file");
            while file.read(&mut block).expect("a file") > 0 {
                while !reading.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    });
    // False: a disk that is fast, or a machine that is idle, loses next to nothing.
    let lose = |more: Duration| {
        let until = lost() + more;
        let begun = Instant::now();
        while lost() < until && begun.elapsed() < PATIENCE / 4 {
            thread::sleep(Duration::from_millis(1));
        }
        lost() >= until
    };
    if !lose(2 * STALL) {
        println!("no stalls");
        return;
    }
    reads.store(false, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(200));
    let armed_and_waited = || {
        // The kernel has the capabilities of each thread, and this one ends here.
        let mut own = rustix::thread::capabilities(None).ok()?;
        own.effective.remove(CapabilitySet::SYS_RESOURCE);
        rustix::thread::set_capabilities(None, own).ok()?;
        let before = lost();
        let window = Duration::from_secs(2);
        let trigger = host.trigger(StallScope::Some, STALL, window).ok()?;
        reads.store(true, Ordering::Relaxed);
        lose(Duration::from_millis(2));
        reads.store(false, Ordering::Relaxed);
        let fired = trigger.wait(3 * window).ok()?;
        Some((fired, lost() - before))
    };
    let found = thread::scope(|scope| scope.spawn(armed_and_waited).join());
    match found.expect("no panic") {
        Some((fired, lost)) => println!("fired {fired} enough {}", lost >= STALL),
        None => println!("no trigger"),
    }
}

/// Says how the wait for a trigger ends.
fn leaves() {
    let mut input = BufReader::new(std::io::stdin()).lines();
    input.next();
    match Host::new().trigger(
        StallScope::Full,
        Duration::from_secs(1),
        Duration::from_secs(2),
    ) {
        Ok(trigger) => {
            println!("set");
            println!(
                "{}",
                trigger
                    .wait(PATIENCE)
                    .map_or_else(|fault| fault.to_string(), |fired| fired.to_string())
            );
        }
        Err(fault) => println!("none: {fault}"),
    }
}

/// Fills a cache of 100 MiB that gives back when the host is short of memory. `share` makes 8 MiB
/// of shared memory, `read` reads a file of half a GiB. After each line it says what it was asked
/// for.
fn gives() {
    let mut input = BufReader::new(std::io::stdin()).lines();
    input.next();
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let block = || (vec![1_u8; MIB as usize], root.force_charge(Bytes(MIB)));
    let cache = Arc::new(Cache(Mutex::new((0..100).map(|_| block()).collect())));
    let _registration = root.register_reclaimer(cache, ReclaimPriority::NORMAL);
    // Held memory alone decides: time that the kernel loses to its own reclaim asks for nothing.
    let reclaimer = Host::new()
        .reclaimer(&root)
        .step(Percent::new(0).expect("at most 100"));
    let reclaiming = reclaimer
        .period(Duration::from_millis(10))
        .start()
        .expect("a host");
    let shared = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC);
    let mut shared = fs::File::from(shared.expect("a file in memory"));
    println!("full");
    for line in input.map_while(Result::ok) {
        match line.as_str() {
            "share" => shared
                .write_all(&vec![1; 8 * MIB as usize])
                .expect("memory"),
            "read" => read_half_a_gib(),
            _ => {}
        }
        // A few looks, so that the next step finds the room.
        thread::sleep(Duration::from_millis(100));
        println!("asked {}", reclaiming.state().asked / MIB);
    }
}

/// A file on the disk: in a `tmpfs` it would be shared memory.
fn read_half_a_gib() {
    let mut file =
        tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder of the build");
    let mut block = vec![1_u8; MIB as usize];
    (0..512)
        .try_for_each(|_| file.write_all(&block))
        .expect("room on the disk");
    file.rewind().expect("a file");
    while file.read(&mut block).expect("a file") > 0 {}
}

/// Takes 8 MiB more at each line.
fn grows() {
    let mut held = Vec::new();
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        println!("held");
        held.push(vec![1_u8; 8 * MIB as usize]);
    }
}

/// Says what it reads of its limits, and whether a strict service would start.
fn tells() {
    std::io::stdin().lines().next();
    let limits = Host::new().limits().expect("a host");
    let is_whole = limits.unread.is_empty();
    println!("limit {} whole {is_whole}", limits.bytes() / MIB);
    let builder = Runtime::builder().max_of_host("80%").expect("a share");
    println!("strict starts {}", builder.strict().build().is_ok());
}

// === Control groups ===

/// A control group of the test's own.
struct ControlGroup {
    dir: PathBuf,
    version: u8,
}

impl ControlGroup {
    /// Of 256 MiB; `None` where the system has none or allows none.
    fn limited(name: &str) -> Option<ControlGroup> {
        ControlGroup::new(name, &[1, 2], |group| group.set_limit(256 * MIB))
    }

    /// Below the own group, or at the top.
    fn new(
        name: &str,
        versions: &[u8],
        prepare: impl Fn(&ControlGroup) -> io::Result<()>,
    ) -> Option<ControlGroup> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path_of = |controllers: &str| {
            own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                (parts.next()? == controllers).then(|| parts.next().map(str::to_string))?
            })
        };
        let mounts = [
            (1, "memory", "/sys/fs/cgroup/memory"),
            (2, "", "/sys/fs/cgroup"),
            // Beside version 1.
            (2, "", "/sys/fs/cgroup/unified"),
        ];
        let mut faults = Vec::new();
        for (version, controllers, mount) in mounts
            .into_iter()
            .filter(|(version, ..)| versions.contains(version))
        {
            for path in path_of(controllers).into_iter().chain(["/".to_string()]) {
                let dir = PathBuf::from(format!("{mount}{path}"))
                    .join(format!("memcg-host-{name}-{}", process::id()));
                let made = fs::create_dir(&dir).and_then(|()| {
                    let group = ControlGroup { dir, version };
                    prepare(&group).map(|()| group)
                });
                match made {
                    Ok(group) => return Some(group),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        let kinds: Vec<_> = faults.iter().map(io::Error::kind).collect();
        println!("this system lets the test make no such control group: {kinds:?}");
        let cannot = |fault: &io::Error| {
            matches!(
                fault.kind(),
                ErrorKind::NotFound | ErrorKind::ReadOnlyFilesystem
            )
        };
        let is_root = fs::metadata("/proc/self").expect("this is Linux").uid() == 0;
        assert!(
            env::var("CI").as_deref() != Ok("true") || !is_root || faults.iter().all(cannot),
            "CI=true, and root may make control groups"
        );
        None
    }

    /// A group below, without a limit.
    fn below(&self, name: &str) -> ControlGroup {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).expect("a group below one of the test's own");
        ControlGroup {
            dir,
            version: self.version,
        }
    }

    fn set_limit(&self, bytes: u64) -> io::Result<()> {
        let (max, swap, swap_bytes) = match self.version {
            1 => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                bytes,
            ),
            _ => ("memory.max", "memory.swap.max", 0),
        };
        // If swap is accounted, the limit of both is not below that of memory: the order depends on
        // the direction.
        let write = |name: &str, bytes: u64| put(&self.dir.join(name), bytes);
        let _ = write(swap, swap_bytes);
        write(max, bytes)?;
        let _ = write(swap, swap_bytes);
        Ok(())
    }

    /// Starts this program again, in the group.
    fn start(&self, role: &str) -> Service {
        let command = Command::new(env::current_exe().expect("this program"));
        self.start_by(command, role)
    }

    /// Starts a command that becomes this program, in the group. It gets a line once it is there.
    fn start_by(&self, mut command: Command, role: &str) -> Service {
        let started = command
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.expect("this program starts again");
        join(&self.dir, child.id()).expect("a process joins the group");
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let input = child.stdin.take();
        let mut service = Service {
            child,
            input,
            lines,
        };
        service.say("go");
        service
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is left", self.dir.display());
    }
}

fn join(group: &Path, process: u32) -> io::Result<()> {
    put(&group.join("cgroup.procs"), process)
}

/// Writes a file of the kernel, and makes none in another file system.
fn put(file: &Path, number: impl ToString) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(file)?
        .write_all(number.to_string().as_bytes())
}

struct Service {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Service {
    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("open"), "{line}").expect("the service reads");
    }

    /// The next line.
    #[track_caller]
    fn line(&self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .expect("the service says more")
    }

    /// Waits for such a line. Returns how long that took.
    #[track_caller]
    fn wait_for(&self, line: &str) -> Duration {
        let begun = Instant::now();
        let left = || PATIENCE.saturating_sub(begun.elapsed());
        while let Ok(said) = self.lines.recv_timeout(left()) {
            if said == line {
                return begun.elapsed();
            }
        }
        panic!("the service never said {line:?}");
    }

    fn end(mut self) -> ExitStatus {
        self.input = None;
        self.child.wait().expect("a child")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === The tests ===

/// A process that goes into a namespace of its own finds groups above alone, through mounts that are
/// older. It says so, and a strict service does not start.
fn a_namespace_hides_the_own_group() -> bool {
    let Some(group) = ControlGroup::limited("hidden") else {
        return false;
    };
    let as_it_is = group.start("tells");
    assert_eq!(as_it_is.line(), "limit 256 whole true");
    assert_eq!(as_it_is.line(), "strict starts true");
    assert!(as_it_is.end().success());
    let mut command = Command::new("sh");
    let into_namespace = r#"read -r line && exec unshare --cgroup "$0""#;
    command
        .args(["-c", into_namespace])
        .arg(env::current_exe().expect("this program"));
    let mut apart = group.start_by(command, "tells");
    // The shell has read the first line. It may have gone since, where it may make no namespace.
    let _ = writeln!(apart.input.as_mut().expect("open"), "go");
    let Ok(said) = apart.lines.recv_timeout(PATIENCE) else {
        println!("this system lets the test make no namespace of control groups");
        return false;
    };
    assert!(said.ends_with(" whole false"), "{said}");
    assert_eq!(apart.line(), "strict starts false");
    assert!(apart.end().success());
    true
}

/// The limit falls before the service fills its cache and while it is full, and rises again.
fn a_service_that_follows_lives() -> bool {
    let Some(group) = ControlGroup::limited("follows") else {
        return false;
    };
    let mut service = group.start("follows");
    service.wait_for(&format!("max {}", 128 * MIB));
    service.say("fill");
    service.wait_for(&format!("full {}", 128 * MIB));
    for mib in [200, 150, 300, 180] {
        group
            .set_limit(mib * MIB)
            .expect("above what the service holds");
        let max = service.wait_for(&format!("max {}", mib / 2 * MIB));
        let full = service.wait_for(&format!("full {}", mib / 2 * MIB));
        println!(
            "limit {mib} MiB: followed after {} ms, full {} ms later",
            max.as_millis(),
            full.as_millis()
        );
    }
    let status = service.end();
    assert!(status.success(), "{status}");
    true
}

/// The limit falls below the max of the service, which it never reads again.
fn a_service_that_does_not_is_killed() -> bool {
    use std::os::unix::process::ExitStatusExt;

    let Some(group) = ControlGroup::limited("fixed") else {
        return false;
    };
    let mut service = group.start("fixed");
    service.wait_for(&format!("max {}", 128 * MIB));
    group
        .set_limit(64 * MIB)
        .expect("the service holds little yet");
    service.say("fill");
    let status = service.child.wait().expect("a child");
    // A shell says 128 + 9.
    assert_eq!(status.signal(), Some(9), "{status}");
    true
}

/// So many lines take 8 MiB each: with the 100 MiB of the cache that is more than the 256 MiB of
/// the group.
const STEPS: u64 = 22;

/// The MiB that a service was asked for.
#[track_caller]
fn asked(service: &Service) -> u64 {
    service
        .line()
        .strip_prefix("asked ")
        .and_then(|mib| mib.parse().ok())
        .expect("a number")
}

/// A limit of 512 MiB, a cache of 380 MiB, a leak of 200 MiB: the cache gives back, and the service
/// lives.
fn a_leak_is_made_room_for() -> bool {
    let Some(group) = ControlGroup::new("room", &[1, 2], |group| group.set_limit(512 * MIB)) else {
        return false;
    };
    let mut service = group.start("makes_room");
    service.wait_for("full");
    service.say("leak");
    let said = service.line();
    let words: Vec<&str> = said.split(' ').collect();
    assert_eq!(
        (words[0], words[1], words[3]),
        ("leaked", "200", "true"),
        "{said}"
    );
    assert!(
        (180..=260).contains(&words[2].parse::<u64>().expect("MiB")),
        "{said}"
    );
    service.say("end");
    assert!(service.child.wait().expect("it ends").success());
    true
}

/// The same without `less_uncharged`: the kernel kills the service.
fn a_leak_without_room_is_killed() -> bool {
    use std::os::unix::process::ExitStatusExt;

    let Some(group) = ControlGroup::new("leak", &[1, 2], |group| group.set_limit(512 * MIB)) else {
        return false;
    };
    let mut service = group.start("leaks");
    service.wait_for("full");
    service.say("leak");
    let status = service.child.wait().expect("a child");
    // A shell says 128 + 9.
    assert_eq!(status.signal(), Some(9), "{status}");
    true
}

/// The group above has the limit, a process beside takes the memory: the service gives back, and
/// both live.
fn a_neighbour_fills_the_group_above() -> bool {
    let Some(pod) = ControlGroup::limited("pod") else {
        return false;
    };
    let own = pod.below("own");
    let beside = pod.below("beside");
    let mut service = own.start("gives");
    let mut neighbour = beside.start("grows");
    service.wait_for("full");
    neighbour.wait_for("held");
    for _ in 1..STEPS {
        neighbour.say("more");
        neighbour.wait_for("held");
        thread::sleep(Duration::from_millis(100));
    }
    service.say("?");
    assert!(asked(&service) > 0);
    assert!(neighbour.end().success() && service.end().success());
    true
}

/// The kernel gives no shared memory back: the service does.
fn shared_memory_fills_the_group() -> bool {
    let Some(group) = ControlGroup::limited("shared") else {
        return false;
    };
    let mut service = group.start("gives");
    service.wait_for("full");
    let steps = (0..STEPS).map(|_| {
        service.say("share");
        asked(&service)
    });
    assert!(steps.max() > Some(0));
    let status = service.end();
    assert!(status.success(), "{status}");
    true
}

/// The kernel gives page cache back: the service keeps its own cache.
fn page_cache_asks_nothing() -> bool {
    let Some(group) = ControlGroup::limited("pages") else {
        return false;
    };
    let mut service = group.start("gives");
    service.wait_for("full");
    service.say("read");
    assert_eq!(asked(&service), 0);
    let status = service.end();
    assert!(status.success(), "{status}");
    true
}

/// The kernel takes a trigger of the nearest pressure file, and a wait ends. Faulty ones are
/// refused.
fn the_kernels_trigger() -> bool {
    let host = Host::new();
    let pressure = host.pressure();
    if let Err(fault) = &pressure {
        println!("no pressure stall information here: {fault}");
        return false;
    }
    let stall = Duration::from_millis(150);
    let window = Duration::from_secs(2);
    for (stall, window) in [
        (window * 2, window),
        (stall, Duration::from_secs(60)),
        (Duration::ZERO, window),
    ] {
        let refused = host.trigger(StallScope::Some, stall, window);
        assert!(
            matches!(refused, Err(HostError::Trigger { .. })),
            "{stall:?} in {window:?}: {refused:?}"
        );
    }
    match host.trigger(StallScope::Full, stall, window) {
        Ok(trigger) => {
            // The test does not say if memory is short now.
            let fired = trigger
                .wait(Duration::from_millis(50))
                .expect("the file stays");
            let again = trigger.wait(Duration::ZERO).expect("the file stays");
            assert!(!again, "at most once in a window; first {fired}");
            true
        }
        Err(fault) => {
            println!("this system takes no trigger: {fault}");
            false
        }
    }
}

/// True if the kernel takes a trigger of the process that has said this.
fn is_set(said: &str) -> bool {
    if said != "set" {
        println!("this system takes no trigger: {said}");
    }
    said == "set"
}

/// A process waits for memory that its group may not have: its wait for the trigger ends.
fn the_kernels_trigger_fires() -> bool {
    let Some(group) = ControlGroup::limited("reads") else {
        return false;
    };
    group
        .set_limit(FILE_MIB / 4 * MIB)
        .expect("more than the process has");
    let mut process = group.start("reads");
    if !is_set(&process.line()) {
        return false;
    }
    process.say("read");
    assert_eq!(process.line(), "fired true");
    true
}

/// The kernel fires the trigger of a process without rights at its first stall of any length, for time
/// that was lost before: the wait goes on.
fn an_old_stall_fires_nothing() -> bool {
    let Some(group) = ControlGroup::limited("arms") else {
        return false;
    };
    group
        .set_limit(FILE_MIB / 4 * MIB)
        .expect("more than the process has");
    let process = group.start("arms");
    let said = process.line();
    match said.as_str() {
        "fired false enough false" => true,
        // Others on the machine have lost time meanwhile, or the file takes no trigger.
        "fired true enough true" | "fired false enough true" | "no trigger" | "no stalls" => {
            println!("left out: {said}");
            false
        }
        _ => panic!("{said}"),
    }
}

/// The kernel removes the file of a group that is gone, also from under a process that waits.
fn a_trigger_ends_with_its_group() -> bool {
    let has_pressure =
        |group: &ControlGroup| fs::metadata(group.dir.join("memory.pressure")).map(drop);
    let Some(group) = ControlGroup::new("leaves", &[2], has_pressure) else {
        return false;
    };
    let process = group.start("leaves");
    if !is_set(&process.line()) {
        return false;
    }
    join(
        group.dir.parent().expect("a group above"),
        process.child.id(),
    )
    .expect("a process may leave");
    fs::remove_dir(&group.dir).expect("no process is in it");
    assert_eq!(
        process.line(),
        format!(
            "the control group of {}/memory.pressure is gone",
            group.dir.display()
        )
    );
    true
}
