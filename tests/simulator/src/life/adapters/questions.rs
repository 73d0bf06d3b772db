//! Clients of the socket that answers questions about a tree: some ask, some stop in the middle, some
//! go.
//!
//! The socket is one of the system, in a folder of the life, and a thread serves it. A client that has
//! said all is given its answers in their order, and then its end; and nothing is kept of one that has
//! gone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_observe::protocol::{Answer, CounterRow, INCIDENTS_MAX, Incident, ROWS_MAX, Row, Rows};
use memcg_observe::{Endpoint, Exposition, GroupFile, serve};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::LATEST;
use crate::denied;
use crate::script::pick;

const STEPS: usize = 30;
const CLIENTS: usize = 5;

/// A question is no longer than that.
const LONGEST: usize = 4 << 10;

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("a socket that is served");
        stream.set_read_timeout(Some(LATEST)).expect("a time");
        Client(BufReader::new(stream))
    }

    fn say(&mut self, text: &str) {
        self.0
            .get_mut()
            .write_all(text.as_bytes())
            .expect("the socket is read");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer in time");
        assert!(line.ends_with('\n'), "a whole answer: {line:?}");
        line
    }

    /// Nothing comes any more, and the socket is closed.
    fn ends(mut self) {
        let mut rest = Vec::new();
        let ended = self.0.read_to_end(&mut rest);
        // What it has said and nobody has read breaks the connection.
        let is_closed = match &ended {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "a client that has said all is kept: {ended:?}");
        assert_eq!(rest, b"", "after the last answer");
    }
}

/// Sockets of the process.
fn sockets() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let links = all
        .flatten()
        .filter_map(|of| std::fs::read_link(of.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

/// What is asked, and what comes.
struct Twin {
    one: Group,
    max: u64,
    may_set: bool,
}

/// A question of the present, and what is wrong with its answer.
type Check = Box<dyn Fn(&str) -> Option<String>>;

fn is_line(known: String) -> Check {
    Box::new(move |found| (found != known).then(|| format!("not {known:?}")))
}

fn begins(known: &'static str) -> Check {
    Box::new(move |found| (!found.starts_with(known)).then(|| format!("not {known:?}")))
}

/// The row of a group, as its handle says it. Nobody charges meanwhile.
fn row_of(group: &Group, depth: usize) -> Row {
    let inspect = group.inspect();
    let limits = group.limits();
    let count = |(event, count): (Event, u64)| (event.name().to_string(), count);
    let events = group.events();
    let events = events.iter().filter(|&(_, count)| count > 0 || depth == 0);
    let counters = group.counters().map(|counter| {
        let row = CounterRow {
            unit: String::from("events"),
            usage: counter.usage(),
            stocked_bound: counter.stocked_bound(),
            peak: counter.peak(),
            max: counter.max(),
            refused: counter.refused_count(),
        };
        (counter.name().to_string(), row)
    });
    Row {
        path: group.path(),
        depth,
        children: inspect.child_count(),
        usage: group.usage(),
        stocked_bound: group.memory().stocked_bound(),
        peak: group.peak(),
        forced: group.forced(),
        max: group.max(),
        high: inspect.high(),
        soft: inspect.soft(),
        low: inspect.low(),
        min: inspect.min(),
        share: limits.share.unwrap_or(0),
        importance: limits.importance,
        waiting: group.waiting_count() as u64,
        refused: group.refused_count(),
        events: events.map(count).collect(),
        stats: BTreeMap::new(),
        counters: counters.collect(),
        pressure: group.pressure().into(),
        uncharged: inspect.uncharged(),
        pressure_level: group.pressure_level().name().to_string(),
    }
}

impl Twin {
    fn question(&mut self, rng: &mut Xoshiro256PlusPlus) -> (String, Check) {
        let get = |file: &str| format!(r#"{{"get":{{"path":"/one","file":"{file}"}}}}"#);
        let ok = |text: &str| is_line(format!("{{\"ok\":{text}}}\n"));
        match rng.random_range(0..11) {
            7 | 8 => self.rows(rng),
            9 | 10 => self.incidents(rng),
            0 | 1 => (get("memory.max"), ok(&format!("\"{}\\n\"", self.max))),
            2 => (get("memcg.live"), ok("\"3000\\n\"")),
            3 | 4 => {
                let max = rng.random_range(4_000..9_000);
                let set = |file: &str, to: &str| {
                    format!(r#"{{"set":{{"path":"/one","file":"{file}","to":"{to}"}}}}"#)
                };
                if rng.random_bool(0.2) {
                    let (file, to) = pick(rng, &[("memory.max", "some"), ("memory.peak", "0")]);
                    return (set(file, to), begins("{\"error\":"));
                }
                let question = set("memory.max", &max.to_string());
                if self.may_set {
                    self.max = max;
                    (question, ok("null"))
                } else {
                    (question, begins("{\"error\":"))
                }
            }
            5 => (get("memory.nothing"), begins("{\"error\":")),
            _ => {
                let path = self.one.path();
                let is_whole = move |found: &str| {
                    let is_it = found.starts_with("{\"ok\":\"# ") && found.contains(&path);
                    let ends = found.ends_with("# EOF\\n\"}\n");
                    let mut lines: Vec<&str> = found.split("\\n").collect();
                    let many = lines.len();
                    lines.sort_unstable();
                    lines.dedup();
                    let is_right = is_it && ends && lines.len() == many;
                    (!is_right).then(|| String::from("not the page, or some of it twice"))
                };
                (String::from("{\"metrics\":{}}"), Box::new(is_whole))
            }
        }
    }

    /// The group and those below it, or those of the root; or too many of them.
    fn rows(&self, rng: &mut Xoshiro256PlusPlus) -> (String, Check) {
        let (depth, top) = pick(
            rng,
            &[(0, 0), (1, 1), (1, 50), (2, 500), (2, 501), (1_001, 1)],
        );
        // A later question of the client may set another max before the answer is looked at.
        let (one, max) = (self.one.clone(), self.max);
        let question = format!(r#"{{"rows":{{"path":"/one","depth":{depth},"top":{top}}}}}"#);
        if depth * top > ROWS_MAX {
            return (question, begins("{\"error\":"));
        }
        let is_right = move |found: &str| {
            let found: Answer<Rows> = serde_json::from_str(found).expect("rows");
            let Answer::Ok(Rows { mut rows, others }) = found else {
                return Some(String::from("no rows"));
            };
            // The largest; which of those that are equal is not said.
            let below = one.children();
            let mut usages: Vec<u64> = below.iter().map(Group::usage).collect();
            usages.sort_unstable_by(|one, other| other.cmp(one));
            usages.truncate(if depth > 0 { top } else { 0 });
            let found = rows.iter().skip(1).map(|row| row.usage);
            if !found.eq(usages.iter().copied()) {
                return Some(format!("not the largest: {usages:?}"));
            }
            let with_path = |row: &Row| below.iter().find(|group| group.path() == row.path);
            let mut known = vec![row_of(&one, 0)];
            known[0].max = max;
            let shown = rows.iter().skip(1).filter_map(with_path);
            known.extend(shown.map(|group| row_of(group, 1)));
            // Items of the crate's own are in the figures of the page.
            rows.iter_mut().for_each(|row| row.stats.clear());
            let sum: u64 = known[1..].iter().map(|row| row.usage).sum();
            let others_known = if depth > 0 {
                vec![(1, one.usage() - sum)]
            } else {
                Vec::new()
            };
            let others: Vec<_> = others.into_iter().filter(|other| other.0 == 1).collect();
            let is_right = rows == known && others == others_known;
            (!is_right).then(|| format!("not {known:?} and {others_known:?}"))
        };
        (question, Box::new(is_right))
    }

    /// The last refusals and victims.
    fn incidents(&self, rng: &mut Xoshiro256PlusPlus) -> (String, Check) {
        let most = pick(rng, &[0, 1, 2, 5, INCIDENTS_MAX, INCIDENTS_MAX + 1]);
        let mut question = format!(r#"{{"incidents":{{"path":"/one","most":{most}}}}}"#);
        // Who does not say how many has some: more than this runtime keeps.
        if most == INCIDENTS_MAX && rng.random() {
            question = String::from(r#"{"incidents":{"path":"/one"}}"#);
        }
        if most > INCIDENTS_MAX {
            return (question, begins("{\"error\":"));
        }
        let one = self.one.clone();
        let is_right = move |found: &str| {
            let found: Answer<Vec<Incident>> = serde_json::from_str(found).expect("incidents");
            let mut known = one.inspect().incidents();
            let known = known.split_off(known.len().saturating_sub(most));
            let known: Vec<Incident> = known.into_iter().map(Incident::from).collect();
            (found != Answer::Ok(known.clone())).then(|| format!("not {known:?}"))
        };
        (question, Box::new(is_right))
    }
}

/// It gives nothing before it is told to end.
#[derive(Default)]
struct Busy(AtomicBool);

impl Reclaim for Busy {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let until = Instant::now() + LATEST;
        while !self.0.load(Ordering::SeqCst) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
        0
    }
}

/// Several clients have limits set at once, some of them in vain, while one's is still being set: each
/// is told of its own.
fn set_at_once(path: &Path, one: &Group, may_set: bool, rng: &mut Xoshiro256PlusPlus) {
    let busy = Arc::<Busy>::default();
    let asked = Arc::clone(&busy) as Arc<dyn Reclaim>;
    let _registration = one.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let mut clients = [(); 4].map(|()| Client::new(path));
    let first = rng.random_range(0..clients.len());
    let mut waiting = Vec::new();
    let mut ask = |clients: &mut [Client], number: usize, file: &str, to: &str| {
        let set = format!(r#"{{"set":{{"path":"/one","file":"{file}","to":"{to}"}}}}"#);
        clients[number].say(&format!("{set}\n"));
        waiting.push((number, set, may_set && ["100", "1T"].contains(&to)));
        // Once another one has its answer, what was there before has been read.
        let mut other = Client::new(path);
        other.say("{\"get\":{\"path\":\"/one\",\"file\":\"memory.max\"}}\n");
        other.answer();
    };
    // What is used is above it.
    ask(&mut clients, first, "memory.high", "100");
    for number in (0..clients.len()).filter(|number| *number != first) {
        let sets = [
            ("memory.high", "some"),
            ("memory.peak", "0"),
            ("memory.high", "1T"),
        ];
        let (file, to) = pick(rng, &sets);
        ask(&mut clients, number, file, to);
    }
    busy.0.store(true, Ordering::SeqCst);
    while !waiting.is_empty() {
        let (number, set, is_set) = waiting.swap_remove(rng.random_range(0..waiting.len()));
        let found = clients[number].answer();
        let is_right = match is_set {
            true => found == "{\"ok\":null}\n",
            false => found.starts_with("{\"error\":"),
        };
        assert!(is_right, "{set} of one client of many: {found:?}");
    }
    GroupFile::High.write(one, "max").expect("a limit");
}

/// So many bytes may wait for clients that do not take them: more than one page. Of two that take
/// nothing the one goes that has kept its own waiting for longer.
const KEPT: usize = 1_500_000;

fn take_nothing(path: &Path) {
    const PAGE: &str = "{\"metrics\":{}}\n";
    let mut reads = Client::new(path);
    reads.say(PAGE);
    let length = reads.answer().len();
    let mut slow = [(); 4].map(|()| Client::new(path));
    let mut whole = 0;
    for client in &mut slow {
        client.say(PAGE);
        // One after the other.
        reads.say("{\"get\":{\"path\":\"/one\",\"file\":\"memory.max\"}}\n");
        reads.answer();
        std::thread::sleep(Duration::from_millis(2));
    }
    for (number, client) in slow.iter_mut().enumerate() {
        let mut line = Vec::new();
        _ = client.0.read_until(b'\n', &mut line);
        whole += usize::from(line.len() == length);
        assert!(
            number < 3 || line.len() == length,
            "the last has kept nothing waiting for longer than others"
        );
    }
    // Of each the system itself keeps some.
    let fits = KEPT / length;
    assert!(
        whole >= fits,
        "{whole} of 4 have their page, of {length} bytes"
    );
}

/// What is at the place of a socket before it is served, and whose file it is afterwards.
fn take_turns(runtime: &Runtime, path: &Path, rng: &mut Xoshiro256PlusPlus) {
    match rng.random_range(0..4) {
        0 => {
            // Nobody listens any more.
            drop(UnixListener::bind(path).expect("a new socket"));
            assert!(path.exists(), "what is left of it");
        }
        1 => {
            let _other = UnixListener::bind(path).expect("a new socket");
            let error = serve(runtime, path).expect_err("the place is taken");
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            std::fs::remove_file(path).expect("it is there");
        }
        2 => {
            std::fs::write(path, "a note").expect("a new file");
            let error = serve(runtime, path).expect_err("the place is taken");
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            let found = std::fs::read_to_string(path).expect("it is there");
            assert_eq!(found, "a note", "the file of another");
            std::fs::remove_file(path).expect("it is there");
        }
        _ => {
            let first = serve(runtime, path).expect("a new socket");
            std::fs::remove_file(path).expect("it is there");
            let second = serve(runtime, path).expect("a new socket");
            drop(first);
            assert!(path.exists(), "the file of the server that came later");
            assert_eq!(second.path(), path, "where it is");
        }
    }
}

/// A page that nobody waits for is not kept: it may be long.
fn forgets_pages(path: &Path) {
    let before = denied::in_use();
    let mut client = Client::new(path);
    client.say("{\"metrics\":{}}\n");
    let length = client.answer().len();
    drop(client);
    // The names that were shown are known from then on.
    let most = before + length / 2;
    let until = Instant::now() + LATEST;
    while denied::in_use() > most {
        let more = denied::in_use() - before;
        assert!(
            Instant::now() < until,
            "{more} bytes more, of a page of {length}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn ask(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut builder = Runtime::builder().batch(Bytes(0));
    let files = builder.counter("files", memcg::Unit::Events);
    let runtime = builder.build().expect("a configuration that holds");
    let of_root = runtime.root().counter(files).expect("declared");
    of_root.set_batch(0);
    let limits = Limits::new().max(5_000).low(500).importance(7);
    let one = runtime.root().create("one", limits);
    let one = one.expect("nothing is in the way");
    let mut held = vec![one.charge(1_000).expect("there is room")];
    // Those below have all that is left, each less than the one before. Many make a long page.
    let below = pick(&mut rng, &[1, 4, 4, 4, 400]);
    let mut left = 2_000;
    for number in 0..below {
        let group = one.create(number, Limits::new());
        let group = group.expect("nothing is in the way");
        let bytes = if number + 1 == below { left } else { left / 2 };
        held.push(group.charge(bytes).expect("there is room"));
        left -= bytes;
        if number == 0 {
            let [charge] = group.charge_set(&[(files, 3)]).expect("no limit");
            held.push(charge);
        }
    }
    // So many are kept, whatever the socket's own setting is.
    let keeps = rng.random_range(1..6);
    runtime.keep_incidents(keeps);
    let path = folder.path().join("socket");
    take_turns(&runtime, &path, &mut rng);
    runtime.keep_incidents(keeps);
    let may_set = rng.random_bool(0.7);
    let page = Exposition::new(&runtime).top(500);
    let endpoint = Endpoint::new(&runtime).allow_set(may_set).exposition(page);
    let mode = pick(&mut rng, &[0o600, 0o660, 0o606]);
    let endpoint = endpoint.incidents(0).kept(KEPT).mode(mode);
    let serving = endpoint.serve(&path).expect("a new socket");
    let found = std::fs::metadata(&path).expect("it is there");
    let found = found.permissions().mode() & 0o777;
    assert_eq!(found, mode, "who may connect");
    for _ in 0..rng.random_range(0..8) {
        assert!(one.charge(20_000).is_err(), "more than its max");
    }
    let refused = one.refused_count();
    let kept = one.inspect().incidents().len() as u64;
    assert_eq!(kept, refused.min(keeps as u64), "incidents that are kept");
    let before = sockets();
    let mut twin = Twin {
        one: one.clone(),
        max: 5_000,
        may_set,
    };
    let mut clients: Vec<Client> = Vec::new();
    let is_long = below > 4;
    if is_long {
        forgets_pages(&path);
        take_nothing(&path);
    }
    for _ in 0..STEPS {
        if rng.random_bool(0.05) {
            set_at_once(&path, &one, may_set, &mut rng);
        }
        if clients.len() < CLIENTS && rng.random_bool(0.4) {
            clients.push(Client::new(&path));
        }
        if clients.is_empty() {
            continue;
        }
        let at = rng.random_range(0..clients.len());
        let mut client = clients.swap_remove(at);
        let many = rng.random_range(0..4);
        let asked: Vec<_> = (0..many).map(|_| twin.question(&mut rng)).collect();
        let text: String = asked.iter().map(|(line, _)| format!("{line}\n")).collect();
        let ends = rng.random_range(0..7);
        // The last line has no end, where its client has one.
        let text = match ends {
            0 => text.strip_suffix('\n').unwrap_or(&text),
            _ => &text,
        };
        client.say(text);
        if ends <= 1 {
            let stream = client.0.get_ref();
            stream.shutdown(Shutdown::Write).expect("it is open");
        }
        for (line, known) in asked {
            let found = client.answer();
            if let Some(fault) = known(&found) {
                panic!("{line}: {found:?}, {fault}");
            }
        }
        let max = GroupFile::Max.read(&one);
        assert_eq!(max, format!("{}\n", twin.max), "the max that was set");
        match ends {
            0 | 1 => client.ends(),
            2 => {
                client.say(&"x".repeat(LONGEST));
                let found = client.answer();
                assert!(found.starts_with("{\"error\":"), "too long: {found:?}");
                client.ends();
            }
            3 => {
                // It goes in the middle of a question, or without its answer.
                client.say(["{\"get\":{\"pa", "{\"metrics\":{}}\n"][many % 2]);
            }
            _ => clients.push(client),
        }
    }
    drop(clients);
    let until = Instant::now() + LATEST;
    while sockets() > before {
        let left = sockets() - before;
        assert!(
            Instant::now() < until,
            "{left} sockets of clients that have gone"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(serving);
    assert!(
        !path.exists(),
        "the file of a socket that is served no more"
    );
    drop(held);
    assert_eq!(runtime.root().live(), 0, "live at the end");
}
