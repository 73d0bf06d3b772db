//! The program in a real terminal: tmux draws it, presses keys and changes the size. Where there is
//! no tmux the test says so and is left out, unless `CI=true` says that nothing may be.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Limits, Runtime};
use memcg_observe::{Endpoint, EndpointGuard};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    fn new(dir: &Path, name: &str, arguments: &str) -> Tmux {
        let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_memcg-top"));
        // The command after the program shows that it has given the terminal back.
        let shell = format!("{command}; echo ended with $?; exec sleep 1000");
        Tmux::command(dir, name, 80, &shell)
    }

    fn command(dir: &Path, name: &str, width: u16, shell: &str) -> Tmux {
        let tmux = Tmux {
            socket: dir.join(name),
        };
        let width = width.to_string();
        tmux.run(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            "24",
            "sh",
            "-c",
            shell,
        ]);
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .arg("-u")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments)
            .env("TERM", "xterm")
            .env_remove("TMUX");
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "tmux {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Waits until all of it stands on the screen.
    fn shows(&self, texts: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.run(&["capture-pane", "-p"]);
            match texts.iter().find(|&&text| !screen.contains(text)) {
                None => return screen,
                Some(text) => assert!(
                    Instant::now() < until,
                    "no {text:?} on the screen:\n{screen}"
                ),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}

fn serve(runtime: &Runtime, socket: &Path) -> EndpointGuard {
    Endpoint::new(runtime)
        .allow_set(true)
        .serve(socket)
        .unwrap()
}

fn is_there() -> bool {
    let is_there = Command::new("tmux").arg("-V").output().is_ok();
    if !is_there {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "CI=true and there is no tmux"
        );
        println!("left out: there is no tmux");
    }
    is_there
}

#[test]
fn in_a_terminal_of_80_by_24() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let runtime = Runtime::builder()
        .max(256 * MIB)
        .batch(memcg::Bytes(0))
        .build()
        .unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(64 * MIB).high(48 * MIB))
        .unwrap();
    let cache = acme.create("cache", Limits::new()).unwrap();
    let _idle = runtime.root().create("idle", Limits::new()).unwrap();
    let _held = cache.charge(32 * MIB).unwrap();
    let serving = serve(&runtime, &socket);

    let recording = dir.path().join("recording");
    let arguments = format!(
        "--interval 0.1 --record {} {}",
        recording.display(),
        socket.display()
    );
    let tmux = Tmux::new(dir.path(), "live", &arguments);
    let screen = tmux.shows(&[
        "live", "- /", "+ acme", "32.0M", "64.0M", "    idle", "q quit",
    ]);
    assert!(
        screen.lines().next().unwrap().starts_with("memcg-top "),
        "{screen}"
    );

    // Unfolds, filters, orders.
    tmux.keys(&["Down", "Right"]);
    tmux.shows(&["- acme", "cache"]);
    tmux.keys(&["/", "i", "d", "l", "Enter"]);
    assert!(!tmux.shows(&["by usage, with idl"]).contains("acme"));
    tmux.keys(&["Escape"]);
    tmux.shows(&["- acme", "cache"]);
    tmux.keys(&["s"]);
    tmux.shows(&["by name"]);

    // A page, and a limit that the service is told after a question.
    tmux.keys(&["Enter"]);
    tmux.shows(&[
        "events, here and below",
        "usage       32.0M",
        "/acme/cache",
        "now",
    ]);
    assert!(cache.charge(100 * MIB).is_err());
    tmux.shows(&["last refusals and victims", "refused 100.0M to /acme/cache"]);
    tmux.keys(&["M", "9", "6", "M", "Enter"]);
    tmux.shows(&["Set memory.max of /acme from 64.0M to 96M?", "y sets it"]);
    assert_eq!(acme.max(), 64 << 20);
    tmux.keys(&["y"]);
    tmux.shows(&["memory.max of /acme is now 96M", "max         96.0M"]);
    assert_eq!(acme.max(), 96 << 20);
    tmux.keys(&["Escape"]);

    // Pause: figures stand still.
    tmux.shows(&["- acme", "cache"]);
    tmux.keys(&["?"]);
    tmux.shows(&["KEYS", "COLOURS", "any key goes back"]);
    tmux.keys(&["q"]);
    tmux.shows(&["- acme", "cache"]);
    tmux.keys(&["p"]);
    tmux.shows(&["PAUSED"]);
    let more = cache.charge(8 * MIB).unwrap();
    tmux.keys(&["p"]);
    tmux.shows(&["live", "40.0M"]);
    drop(more);

    // Sizes.
    tmux.run(&["resize-window", "-x", "120", "-y", "40"]);
    tmux.shows(&["PEAK"]);
    tmux.run(&["resize-window", "-x", "30", "-y", "6"]);
    tmux.shows(&["memcg-top", "GROUP"]);
    tmux.run(&["resize-window", "-x", "2", "-y", "1"]);
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.shows(&["- acme", "cache", "q quit"]);

    // The service ends, and another one comes.
    drop(serving);
    tmux.shows(&["LOST: "]);
    let _serving = serve(&runtime, &socket);
    tmux.shows(&["live", "32.0M"]);

    tmux.keys(&["q"]);
    assert!(!tmux.shows(&["ended with 0"]).contains("memcg-top"));

    // It shows its recording, once more.
    let tmux = Tmux::new(
        dir.path(),
        "again",
        &format!("--replay {}", recording.display()),
    );
    tmux.shows(&["END: the recording ends here", "+ acme", "32.0M", "96.0M"]);
    tmux.keys(&["M", "1", "G", "Enter", "y"]);
    tmux.shows(&["a recording's limits cannot be set"]);
}

/// A signal ends the program as it should, and the terminal is the shell's again: its lines are there,
/// and what is typed is seen.
#[test]
fn a_signal_gives_the_terminal_back() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let runtime = Runtime::builder().build().unwrap();
    let _serving = serve(&runtime, &socket);
    for (signal, status) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let pid = dir.path().join(signal);
        let tmux = Tmux::command(
            dir.path(),
            &format!("t{signal}"),
            80,
            &format!(
                "echo before; sh -c 'echo $$ >{}; exec {} {}'; echo ended with $?; stty -a; exec sleep 1000",
                pid.display(),
                env!("CARGO_BIN_EXE_memcg-top"),
                socket.display()
            ),
        );
        assert!(!tmux.shows(&["live", "q quit"]).contains("before"));
        let pid = std::fs::read_to_string(pid).unwrap();
        let kill = Command::new("kill")
            .args(["-s", signal, pid.trim()])
            .status();
        assert!(kill.unwrap().success());
        let screen = tmux.shows(&["before", &format!("ended with {status}"), " echo "]);
        assert!(
            screen.contains(" icanon") && !screen.contains("GROUP"),
            "{screen}"
        );
    }
}

/// A terminal that goes away ends the program, also where no one is left to tell it: nothing of it may
/// go on reading what never comes.
#[test]
fn a_terminal_that_is_gone_ends_it() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let runtime = Runtime::builder().build().unwrap();
    let _serving = serve(&runtime, &socket);
    let pid = dir.path().join("pid");
    let tmux = Tmux::command(
        dir.path(),
        "gone",
        80,
        &format!(
            "echo $$ >{}; exec {} {}",
            pid.display(),
            env!("CARGO_BIN_EXE_memcg-top"),
            socket.display()
        ),
    );
    tmux.shows(&["live", "q quit"]);
    let pid = std::fs::read_to_string(pid).unwrap();
    drop(tmux);
    let until = Instant::now() + PATIENCE;
    let is_alive = || std::path::Path::new("/proc").join(pid.trim()).exists();
    while is_alive() {
        assert!(Instant::now() < until, "{} lives on", pid.trim());
        thread::sleep(Duration::from_millis(50));
    }
}

/// A socket with a long path, on terminals of any width: what the program is doing is seen, and so are
/// figures.
#[test]
fn a_long_path_and_a_narrow_terminal() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("x".repeat(60));
    std::fs::create_dir(&folder).unwrap();
    let socket = folder.join("s");
    let runtime = Runtime::builder().batch(memcg::Bytes(0)).build().unwrap();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let _held = acme.charge(32 * MIB).unwrap();
    let serving = serve(&runtime, &socket);
    let tmux = Tmux::new(
        dir.path(),
        "t",
        &format!("--interval 0.1 {}", socket.display()),
    );
    for width in ["80", "20"] {
        tmux.run(&["resize-window", "-x", width, "-y", "24"]);
        tmux.shows(&["live", "acme", "32.0M"]);
        tmux.keys(&["p"]);
        tmux.shows(&["PAUSED"]);
        tmux.keys(&["p"]);
        tmux.shows(&["live"]);
    }
    drop(serving);
    tmux.shows(&["LOST"]);
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.shows(&["x/s  ", "LOST: "]);
}

/// Passes on questions and answers between the clients of `path` and the service, and keeps the
/// questions.
fn listens_in(path: &Path, service: &Path) -> Arc<Mutex<Vec<Value>>> {
    let listener = UnixListener::bind(path).unwrap();
    let service = service.to_path_buf();
    let questions = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&questions);
    // It ends with the test.
    thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let mut served = UnixStream::connect(&service).unwrap();
            let mut answers = BufReader::new(served.try_clone().unwrap());
            for question in BufReader::new(client.try_clone().unwrap())
                .lines()
                .map_while(Result::ok)
            {
                log.lock()
                    .unwrap()
                    .push(serde_json::from_str(&question).unwrap());
                writeln!(served, "{question}").unwrap();
                let mut answer = String::new();
                answers.read_line(&mut answer).unwrap();
                // The program may have ended.
                let _ = (&client).write_all(answer.as_bytes());
            }
        }
    });
    questions
}

/// Of 10,000 groups it asks for those on the screen and one page below, with one question for each
/// sample.
#[test]
fn it_asks_for_what_it_shows() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().batch(memcg::Bytes(0)).build().unwrap();
    let held: Vec<_> = (1..=10_000)
        .map(|number| {
            let group = runtime
                .root()
                .create(&format!("g{number:05}"), Limits::new())
                .unwrap();
            (group.charge(number).unwrap(), group)
        })
        .collect();
    let [socket, service, recording] =
        ["s", "service", "recording"].map(|name| dir.path().join(name));
    let _serving = serve(&runtime, &service);
    let questions = listens_in(&socket, &service);
    // Counts the questions of `top` since the last look. Each question is that for the groups at
    // the top.
    let tops = || -> Vec<usize> {
        let top = |question: &Value| {
            assert_eq!(
                (&question["rows"]["path"], &question["rows"]["depth"]),
                (&"/".into(), &1.into()),
                "{question}"
            );
            question["rows"]["top"].as_u64().unwrap() as usize
        };
        std::mem::take(&mut *questions.lock().unwrap())
            .iter()
            .map(top)
            .collect()
    };

    let arguments = format!(
        "--interval 0.1 --record {} {}",
        recording.display(),
        socket.display()
    );
    let tmux = Tmux::new(dir.path(), "asks", &arguments);
    // The root and 19 groups between the names of the columns and the two lines at the end.
    let page = 20;
    assert!(
        !tmux
            .shows(&["live", "g10000", "g09982", "q quit"])
            .contains("g09981")
    );
    let samples = || std::fs::read_to_string(&recording).unwrap().lines().count();
    let until = Instant::now() + PATIENCE;
    while samples() < 20 {
        assert!(Instant::now() < until, "{} samples", samples());
        thread::sleep(Duration::from_millis(50));
    }
    let first = tops();
    // The first line is the root.
    assert!(
        first.len() >= 20 && first.iter().all(|&top| top == 2 * page - 1),
        "{first:?} of pages of {page}"
    );

    // A hundred lines down, and a few pages further at most. A busy machine may draw several keys at
    // once, so a key is pressed when the one before it is seen, or goes nowhere because the groups
    // further down are not there yet; and the last group on the screen counts.
    let last = |screen: &str| {
        let names = screen
            .split('g')
            .filter_map(|rest| rest.get(..5)?.parse().ok());
        names.min().unwrap_or(10_000_u32)
    };
    let until = Instant::now() + PATIENCE;
    let mut screen = tmux.shows(&[]);
    while last(&screen) > 9_900 {
        tmux.keys(&["PageDown"]);
        let before = last(&screen);
        for _ in 0..10 {
            assert!(Instant::now() < until, "{screen}");
            thread::sleep(Duration::from_millis(20));
            screen = tmux.shows(&[]);
            if last(&screen) != before {
                break;
            }
        }
    }
    tmux.keys(&["q"]);
    tmux.shows(&["ended with 0"]);
    let second = tops();
    let deepest = second.iter().max().copied().unwrap_or(0);
    assert!(
        (101..=100 + 4 * page).contains(&deepest),
        "{second:?} of pages of {page}"
    );
    let asked = first.len() + second.len();
    let samples = samples();
    assert!(
        (samples..=samples + 1).contains(&asked),
        "{asked} questions, {samples} samples"
    );
    drop(held);
}
