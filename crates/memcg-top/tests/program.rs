//! The program as a process of its own, beside a service in this one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use memcg::{Charge, Group, Limits, Runtime};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A service with `/acme/cache`, `/acme/query` and `/idle`.
struct Service {
    runtime: Runtime,
    _groups: Vec<Group>,
    _held: Vec<Charge>,
    dir: tempfile::TempDir,
    serving: Option<memcg_observe::EndpointGuard>,
}

impl Service {
    fn new() -> Service {
        let runtime = Runtime::builder()
            .max(256 * MIB)
            .batch(memcg::Bytes(0))
            .build()
            .unwrap();
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(64 * MIB))
            .unwrap();
        let cache = acme.create("cache", Limits::new()).unwrap();
        let query = acme.create("query", Limits::new()).unwrap();
        let idle = runtime.root().create("idle", Limits::new()).unwrap();
        let held = vec![
            cache.charge(30 * MIB).unwrap(),
            query.charge(2 * MIB).unwrap(),
        ];
        assert!(query.charge(100 * MIB).is_err());
        let dir = tempfile::tempdir().unwrap();
        let serving = Some(memcg_observe::serve(&runtime, dir.path().join("s")).unwrap());
        Service {
            runtime,
            _groups: vec![acme, cache, query, idle],
            _held: held,
            dir,
            serving,
        }
    }

    fn socket(&self) -> String {
        self.file("s").display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memcg-top"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env("NO_COLOR", "1");
    command
}

fn output(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The line that it prints where it fails.
fn failure(arguments: &[&str]) -> String {
    let output = output(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), said.lines().count()),
        (Some(1), 1),
        "{arguments:?}: {said}"
    );
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn once_prints_the_tree() {
    let service = Service::new();
    let table = stdout(&[&service.socket(), "--once", "--depth", "2"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["GROUP", "low", "soft", "high"]);
    assert_eq!((&lines[1][..2], lines[1][3]), (&["-", "/"][..], "32.0M"));
    assert_eq!(
        (&lines[2][..2], &lines[2][3..5]),
        (&["-", "acme"][..], &["32.0M", "64.0M"][..])
    );
    // There is nothing below them.
    assert_eq!((lines[3][0], lines[3][2]), ("cache", "30.0M"));
    assert_eq!((lines[4][0], lines[4][2]), ("query", "2.0M"));
    assert_eq!(lines[5][0], "idle");
    assert!(table.lines().all(|line| line.chars().count() <= 80));
    // The root, and the largest below it.
    assert_eq!(
        stdout(&[&service.socket(), "--once", "--top", "2"])
            .lines()
            .count(),
        1 + 2
    );
}

#[test]
fn json_has_every_figure() {
    let service = Service::new();
    let json: Value = serde_json::from_str(&stdout(&[
        &service.socket(),
        "--once",
        "--json",
        "--depth",
        "3",
    ]))
    .unwrap();
    assert_eq!(json["format"], 1);
    let branch = |path: &str| {
        let branches = json["branches"].as_array().unwrap();
        branches
            .iter()
            .find(|branch| branch["group"]["path"] == path)
            .unwrap()
            .clone()
    };
    let acme = branch("/acme");
    assert_eq!(
        (&acme["group"]["max"], &acme["group"]["usage"]),
        (&(64 * MIB).into(), &(32 * MIB).into())
    );
    assert_eq!(
        (&acme["group"]["refused"], &acme["group"]["events"]["max"]),
        (&1.into(), &1.into())
    );
    assert_eq!(acme["children"][0]["path"], "/acme/cache");
    assert_eq!(branch("/acme/query")["rest"], 2 * MIB);
}

#[test]
fn a_recording_is_replayed() {
    let service = Service::new();
    let socket = service.socket();
    let file = service.file("recording");
    let mut recorder = program(&[
        &socket,
        "--json",
        "--interval",
        "0.05",
        "--record",
        text(&file),
    ]);
    let mut recorder = recorder.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(recorder.stdout.take().unwrap()).lines();
    let mut first = vec![lines.next().unwrap().unwrap()];
    let held = service.runtime.root().charge(7 * MIB).unwrap();
    first.extend(lines.by_ref().take(3).map(Result::unwrap));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    drop(held);

    let replayed = stdout(&["--replay", text(&file), "--json"]);
    let replayed: Vec<&str> = replayed.lines().collect();
    assert_eq!(replayed[..4], first);
    assert!(first[0].contains("\"usage\":33554432") && first[3].contains("\"usage\":40894464"));
    let last = stdout(&["--replay", text(&file), "--once"]);
    assert!(last.contains("39.0M"), "{last}");
    assert_eq!(
        stdout(&["--replay", text(&file), "--once", "--json"])
            .lines()
            .count(),
        1
    );

    // An existing file is not overwritten; a file that is cut off is not taken for whole, and what is
    // whole is shown.
    assert!(failure(&[&socket, "--once", "--record", text(&file)]).contains("exists"));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    let before: Vec<&str> = replayed[..replayed.len() - 1].to_vec();
    for (how, lines) in [(&["--json"][..], before.len()), (&["--once", "--json"], 1)] {
        let arguments = [&["--replay", text(&file)], how].concat();
        assert!(failure(&arguments).contains("cut off"));
        let shown = String::from_utf8(output(&arguments).stdout).unwrap();
        let shown: Vec<&str> = shown.lines().collect();
        assert_eq!(shown, before[before.len() - lines..], "{how:?}");
    }
    assert!(failure(&["--replay", text(&file), "--once"]).contains("cut off"));
    let shown = output(&["--replay", text(&file), "--once"]).stdout;
    assert!(String::from_utf8(shown).unwrap().contains("+ acme"));
    // The end of the last line alone is missing.
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let shown = stdout(&["--replay", text(&file), "--json"]);
    assert_eq!(shown.lines().collect::<Vec<_>>(), replayed);
    std::fs::write(
        &file,
        first[0].replace("\"format\":1", "\"format\":9") + "\n",
    )
    .unwrap();
    assert!(failure(&["--replay", text(&file), "--once"]).contains("line 1: format 9 is not 1"));
    std::fs::write(&file, b"\xff\x1b[2J\n").unwrap();
    assert!(failure(&["--replay", text(&file), "--json"]).contains("line 1"));
    assert!(
        failure(&["--replay", "/nowhere/file", "--json"])
            .starts_with("memcg-top: /nowhere/file: No such file")
    );
}

/// A recording that fails leaves no file, and one that fails later leaves what it has recorded.
#[test]
fn a_recording_that_fails_leaves_no_file() {
    let service = Service::new();
    let nowhere = service.file("nowhere").display().to_string();
    let file = service.file("recording");
    for how in [&["--once"][..], &["--once", "--json"]] {
        assert!(
            failure(&[&[&nowhere, "--record", text(&file)], how].concat())
                .contains("cannot connect")
        );
        assert!(!file.exists(), "{how:?}");
    }
    // A service that says something else.
    let odd = service.file("odd");
    let listener = UnixListener::bind(&odd).unwrap();
    let says = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        stream.write_all(b"{\"ok\":7}\n").unwrap();
    });
    failure(&[text(&odd), "--once", "--record", text(&file)]);
    says.join().unwrap();
    assert!(!file.exists());
    // One that is killed while it waits for a service.
    let mut waits = program(&[
        &nowhere,
        "--json",
        "--interval",
        "0.05",
        "--record",
        text(&file),
    ]);
    let mut waits = waits.stderr(Stdio::piped()).spawn().unwrap();
    BufReader::new(waits.stderr.take().unwrap())
        .lines()
        .next()
        .unwrap()
        .unwrap();
    waits.kill().unwrap();
    waits.wait().unwrap();
    assert!(!file.exists());
    let folder = service.file("no/such/folder/recording");
    assert!(
        failure(&[&service.socket(), "--once", "--record", text(&folder)]).contains("No such file")
    );
    // The file system is full: some bytes of a line, and then none.
    #[cfg(target_os = "linux")]
    {
        let mut command = Command::new("sh");
        let script = "ulimit -f 1 && trap '' XFSZ && exec \"$0\" \"$@\"";
        command.args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_memcg-top"),
            &service.socket(),
            "--once",
            "--depth",
            "9",
        ]);
        let output = command
            .args(["--record", text(&file)])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("recording: "),
            "{said}"
        );
        assert!(!file.exists());
    }
    assert_eq!(
        output(&[&service.socket(), "--once", "--record", text(&file)])
            .status
            .code(),
        Some(0)
    );
    assert!(stdout(&["--replay", text(&file), "--once"]).contains("acme"));
}

/// No such file brings it down or fills the memory: it may have 512 MiB, of which a line has 64
/// MiB.
#[test]
#[cfg(target_os = "linux")]
fn a_recording_that_is_none_is_an_error() {
    let service = Service::new();
    let file = service.file("recording");
    let bounded = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "ulimit -v 524288 && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_memcg-top"),
        ]);
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let [out, said] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, said)
    };
    assert_eq!(
        bounded(&[
            &service.socket(),
            "--once",
            "--depth",
            "9",
            "--record",
            text(&file)
        ])
        .0,
        Some(0)
    );
    let whole = std::fs::read_to_string(&file).unwrap();
    let acme = "\"path\":\"/acme/cache\"";
    assert!(whole.contains(acme));
    let line = |byte: &str| byte.repeat(4 << 20) + "\n";
    let cases = [
        // Nothing was recorded.
        (String::new(), "line 1: it is empty"),
        ("\n".into(), "line 1: EOF while parsing"),
        (whole[..whole.len() / 2].into(), "line 1: it is cut off"),
        (whole.clone() + &whole[..9], "line 2: it is cut off"),
        (
            whole.replace("\"usage\":", "\"usage\":-"),
            "line 1: invalid value",
        ),
        (whole.clone() + "{}\n", "line 2: missing field `format`"),
        // A group below itself has no end, and one that is there twice doubles with each level.
        (
            whole.replace(acme, "\"path\":\"/acme\""),
            "line 1: no service answers with such groups",
        ),
        (
            whole.replace(acme, "\"path\":\"/acme/query\""),
            "line 1: no service answers with such groups",
        ),
        (line("["), "line 1: invalid type: sequence"),
        (
            "{\"later\":".to_string() + &line("["),
            "line 1: EOF while parsing",
        ),
        (line("x"), "line 1: expected value"),
        ("x".repeat(65 << 20), "line 1: it is longer than 64 MiB"),
    ];
    for (content, expected) in cases {
        std::fs::write(&file, &content).unwrap();
        for how in [&["--once"][..], &["--json"], &["--once", "--json"]] {
            let (code, _, said) =
                bounded(&[&["--replay", text(&file), "--depth", "999999999"], how].concat());
            let begins: String = content.chars().take(60).collect();
            assert!(
                code == Some(1) && said.lines().count() == 1 && said.contains(expected),
                "{how:?} of {begins:?}: {code:?}, {said:?}, not {expected:?}"
            );
        }
    }
    // It has no end.
    let (code, _, said) = bounded(&["--replay", "/dev/zero", "--once"]);
    assert_eq!(
        (code, said.as_str()),
        (
            Some(1),
            "memcg-top: recording, line 1: it is longer than 64 MiB\n"
        )
    );
}

#[test]
fn json_goes_on_when_the_service_comes_back() {
    let mut service = Service::new();
    let mut child = program(&[&service.socket(), "--json", "--interval", "0.05"]);
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut faults = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    service.serving = None;
    assert!(faults.next().unwrap().unwrap().starts_with("memcg-top: "));
    service.serving = Some(memcg_observe::serve(&service.runtime, service.file("s")).unwrap());
    // Lines that were asked for before the end are followed by lines from after it.
    let at = |line: String| {
        serde_json::from_str::<Value>(&line).unwrap()["at"]
            .as_u64()
            .unwrap()
    };
    let back = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    assert!(
        lines
            .by_ref()
            .map(|line| at(line.unwrap()))
            .any(|at| at > back)
    );
    // It ends with its reader.
    drop((lines, faults));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_hostile_service_steers_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let figures =
        r#""usage":1,"stocked_bound":0,"peak":0,"forced":0,"max":0,"high":0,"soft":0,"low":0,"min":0,"waiting":0,
        "refused":0,"events":{},"stats":{}}"#
            .replace('\n', " ");
    let row = |path: &str| format!("{{\"path\":\"{path}\",{figures}");
    let group = r"/a\u001b[2J\u009b5A\u202eb";
    let answers = [
        format!(
            "{{\"ok\":{{\"rows\":[{},{}],\"others\":[]}}}}\n",
            row("/"),
            row(group)
        ),
        format!(
            "{{\"ok\":{{\"rows\":[{},{}],\"others\":[]}}}}\n",
            row("/"),
            row(group)
        ),
        "{\"error\":\"\\u001b[2Jno\\u009b\"}\n".to_string(),
        "\u{1b}[2J\n".to_string(),
        "{\"ok\":{\"rows\":[".to_string(),
        "x".repeat(6 << 20),
    ];
    let service = thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            // It may hang up before the end.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let path = text(&path);
    let steers = |text: &str| {
        text.chars()
            .any(|c| c != '\n' && (c.is_control() || c == '\u{202e}'))
    };
    let table = stdout(&[path, "--once"]);
    assert!(
        table.contains("a\u{fffd}[2J\u{fffd}5A\u{fffd}b") && !steers(&table),
        "{table:?}"
    );
    let json = stdout(&[path, "--once", "--json"]);
    let named =
        serde_json::from_str::<Value>(&json).unwrap()["branches"][0]["children"][0]["path"].clone();
    assert_eq!(named, "/a\u{1b}[2J\u{9b}5A\u{202e}b");
    assert!(!steers(&json), "{json:?}");
    for expected in [
        "the service says: \u{fffd}[2Jno\u{fffd}",
        "not what memcg-observe says",
        "has closed",
        "longer than 5 MiB",
    ] {
        let said = failure(&[path, "--once"]);
        assert!(said.contains(expected) && !steers(&said), "{said:?}");
    }
    service.join().unwrap();
}

#[test]
fn what_cannot_be_is_said() {
    assert!(failure(&["/nowhere/socket", "--once"]).contains("cannot connect: No such file"));
    assert!(failure(&["/nowhere/socket"]).contains("no terminal: use --once or --json"));
    for wrong in [
        &["s", "--interval", "0"][..],
        &["s", "--interval", "x"],
        &["s", "--top", "0"],
        &[],
        &["s", "--replay", "f"],
    ] {
        assert_eq!(output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
