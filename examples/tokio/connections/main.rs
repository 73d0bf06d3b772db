//! A TCP service with a group for each connection: below one for each tenant, and gone with the
//! connection.
//!
//! `service.rs` is the part to copy. A buffer is charged before it is allocated. While a tenant is
//! above its *high* its connections are not read, so that their peers stop sending; other tenants'
//! are. Where the budget of all is used up, requests wait in line for it. A connection that ends,
//! however it ends, leaves nothing behind.
//!
//! ```text
//! cargo run --release --example connections
//! cargo run --release --example connections -- --at-once 5000 --in-turn 100000
//! ```
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top`; `--seconds 60` leaves
//! time to look.
//!
//! The client is a process of its own: this program, started again. First it opens 20,000
//! connections one after the other, then 1,000 that are open at the same time, a quarter of which
//! send much. The run fails where there were fewer at once, where no tenant was held back, where an
//! answer is wrong, and where at the end the tree is not empty or its counts, audited, do not add
//! up.

mod client;
mod service;
mod system;

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use memcg::{Bytes, Event, Freshness, Limit};
use memcg_report::table::{Cell, Column, Table};
use memcg_report::terminal::{self, State};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::service::{Service, Settings};

/// The first is the one that sends much.
const TENANTS: [&str; 4] = ["acme", "globex", "initech", "umbrella"];

/// Open files beside the connections.
const FILES: usize = 64;

/// A TCP service with a group for each connection, and a client that opens many.
#[derive(Debug, Parser)]
#[command(name = "connections")]
struct Options {
    /// Connections that are opened one after the other.
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000)]
    in_turn: usize,

    /// Connections that are open at the same time afterwards.
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    at_once: usize,

    /// Requests that each of those makes.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    requests: usize,

    /// Bytes of a request.
    #[arg(long, value_name = "BYTES", default_value = "8KiB")]
    small: Bytes,

    /// Bytes of a request of the first tenant, among those at the same time.
    #[arg(long, value_name = "BYTES", default_value = "256KiB")]
    large: Bytes,

    /// The length of each of those pauses between the quarters of a request, in milliseconds: a
    /// network is slower than this.
    #[arg(long, value_name = "MS", default_value_t = 10)]
    pause: u64,

    /// The most that all connections together may hold.
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    budget: Limit,

    /// From where on a tenant is held back.
    #[arg(long, value_name = "BYTES", default_value = "8MiB")]
    high: Limit,

    /// The longest request.
    #[arg(long, value_name = "BYTES", default_value = "1MiB")]
    request_max: Limit,

    /// Connections beyond that are turned away.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    connections_max: u32,

    /// The time that a request may take, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60)]
    patience: u64,

    /// Make both kinds of connections again and again until so many seconds have passed.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seconds: u64,

    /// Open a socket there that shows the connections' groups while they are served.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE")]
    serve: Option<std::path::PathBuf>,

    /// Be the client of the service at this address.
    #[arg(long, hide = true, requires = "phase")]
    client: Option<SocketAddr>,

    /// The client's phase.
    #[arg(long, hide = true)]
    phase: Option<Phase>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Phase {
    InTurn,
    AtOnce,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match (options.client, options.phase) {
        (Some(address), Some(phase)) => be_client(&options, address, phase).map(|()| Vec::new()),
        _ => run(&options),
    };
    let faults = ended.unwrap_or_else(|error| vec![error.to_string()]);
    for fault in &faults {
        eprintln!("connections: {fault}");
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn be_client(options: &Options, address: SocketAddr, phase: Phase) -> Result<(), Box<dyn Error>> {
    let [small, large] = [options.small, options.large].map(|Bytes(bytes)| u32::try_from(bytes));
    let small = small?;
    let large = large?;
    let client = tokio::runtime::Runtime::new()?;
    match phase {
        Phase::InTurn => {
            client.block_on(client::in_turn(address, &TENANTS, options.in_turn, small))
        }
        Phase::AtOnce => {
            system::allow_files((options.at_once + FILES) as u64)?;
            let requests = options.requests;
            let pause = Duration::from_millis(options.pause);
            client.block_on(client::at_once(
                address,
                &TENANTS,
                options.at_once,
                requests,
                (large, small),
                pause,
            ))
        }
    }
    .map_err(|error| format!("the client: {error}").into())
}

/// Serves the client, and returns what does not hold at the end.
fn run(options: &Options) -> Result<Vec<String>, Box<dyn Error>> {
    system::allow_files((options.at_once + FILES) as u64)?;
    let Options {
        budget,
        high,
        request_max,
        connections_max,
        ..
    } = *options;
    let patience = Duration::from_secs(options.patience);
    let settings = Settings {
        budget,
        high,
        request_max,
        connections_max,
        patience,
    };
    let service = Arc::new(Service::new(&TENANTS, settings)?);
    #[cfg(feature = "serve")]
    let shown = options
        .serve
        .as_ref()
        .map(|path| memcg_observe::serve(&service.runtime, path))
        .transpose()?;
    let workers = tokio::runtime::Runtime::new()?;
    let listener = workers.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let serving = workers.spawn(Arc::clone(&service).serve(listener, stopped));
    let setting = format!(
        "{address}: a budget of {budget}, a tenant is held back above {high}{}",
        resident()
    );
    println!("{}", terminal::wrap(&setting, terminal::width()));

    let mut faults = Vec::new();
    let mut rounds = 0;
    let first = Instant::now();
    while rounds == 0 || (faults.is_empty() && first.elapsed().as_secs() < options.seconds) {
        for (phase, count) in [
            (Phase::InTurn, options.in_turn),
            (Phase::AtOnce, options.at_once),
        ] {
            let began = Instant::now();
            if !start_client(address, phase)? {
                faults.push(format!("the client failed: {phase:?}"));
            }
            let time = began.elapsed();
            let how = if let Phase::InTurn = phase {
                "in turn"
            } else {
                "at once"
            };
            println!("{count} connections {how}: {time:.1?}{}", resident());
        }
        rounds += 1;
    }
    let _ = stop.send(());
    let closed = workers.block_on(serving)?;
    #[cfg(feature = "serve")]
    drop(shown);
    // No thread of the service is left.
    drop(workers);
    let service = Arc::into_inner(service).ok_or("a connection is still served")?;
    let table = tenants(&service).text(terminal::width());
    let (failed, figures) = look_back(options, &service, rounds, closed);
    faults.extend(failed);
    let most = service.most_open();
    let (failed, end) = end(service)?;
    faults.extend(failed);
    let verdict = match faults.len() {
        0 => State::Good.paint(&format!(
            "ok: {most} connections at once, each check holds, and nothing is left"
        )),
        count => State::Bad.paint(&format!(
            "FAULTS: {count} checks failed, a line each on stderr"
        )),
    };
    println!("\n{verdict}\n\n{table}\n\n{figures}\n{end}");
    Ok(faults)
}

/// A row for each tenant.
fn tenants(service: &Service) -> Table {
    let mut table = Table::new([
        Column::words("tenant"),
        Column::figures("peak"),
        Column::figures("high").leaves(1),
        Column::figures("above high").leaves(2),
        Column::figures("connections"),
        Column::figures("requests"),
        Column::figures("held back"),
        Column::figures("for"),
    ]);
    let mut groups = service.runtime.root().children();
    groups.sort_by_key(|group| group.path().to_string());
    for group in groups {
        let counted = group.read(Freshness::Exact);
        let items = &service.items;
        let held_back = counted.get(items.held_back);
        let time = Duration::from_nanos(counted.get(items.held_back_time).unsigned_abs());
        let state = if held_back > 0 {
            State::Tense
        } else {
            State::Plain
        };
        let delay = if held_back > 0 {
            format!("{time:.1?}")
        } else {
            "-".to_owned()
        };
        table.add([
            Cell::from(group.path().to_string()),
            Cell::from(Bytes(group.peak()).to_string()),
            Cell::from(Bytes(group.inspect().high()).to_string()),
            Cell::from(group.events().get(Event::High).to_string()),
            Cell::from(counted.get(items.connections).to_string()),
            Cell::from(counted.get(items.requests).to_string()),
            Cell::new(held_back.to_string(), state),
            Cell::new(delay, state),
        ]);
    }
    table
}

/// The events that were to happen and did not, and the figures.
fn look_back(
    options: &Options,
    service: &Service,
    rounds: usize,
    closed: usize,
) -> (Vec<String>, String) {
    let Options {
        in_turn,
        at_once,
        requests,
        ..
    } = *options;
    let root = service.runtime.root();
    let counted = root.read(Freshness::Exact);
    let items = &service.items;
    let [connections, answered, held_back] =
        [items.connections, items.requests, items.held_back].map(|item| counted.get(item));
    let time = Duration::from_nanos(counted.get(items.held_back_time).unsigned_abs());
    let above = root.events().get(Event::High);
    let in_line = root.events().local().get(Event::Max);
    let figures = format!(
        "{} connections were open at once\n\
         {above} charges left a tenant above its high\n\
         {held_back} requests were not read for {time:.1?} in all\n\
         {in_line} requests waited in line for the budget",
        service.most_open(),
    );

    let mut faults = Vec::new();
    let mut expect = |holds: bool, fault: String| {
        if !holds {
            faults.push(fault);
        }
    };
    expect(
        service.most_open() >= at_once,
        format!("{} connections at once, not {at_once}", service.most_open()),
    );
    expect(
        held_back > 0,
        "no tenant was held back: no tenant was above its high".to_string(),
    );
    expect(
        closed == 0,
        format!("{closed} connections were closed by the service"),
    );
    expect(
        connections == (rounds * (in_turn + at_once)) as i64,
        format!("{connections} connections were counted"),
    );
    expect(
        answered == (rounds * (in_turn + at_once * requests)) as i64,
        format!("{answered} answers were counted"),
    );
    (faults, figures)
}

/// The tenants go; nothing may be left: the faults, and what was found.
fn end(service: Service) -> Result<(Vec<String>, String), Box<dyn Error>> {
    let runtime = service.close()?;
    // Groups that more than one thread has charged are released 64 at a time: the last of them need
    // not wait for more.
    runtime.settle();
    let groups = runtime.group_count();
    let dying = runtime.dying_count();
    let usage = runtime.root().usage();
    let verdict = runtime.verify();
    let end = format!(
        "at the end: {groups} group, {dying} dying, {} charged{}\nverify: {verdict}",
        Bytes(usage),
        resident(),
    );
    let left = (groups, dying, usage) != (1, 0, 0);
    let faults = [
        left.then(|| {
            format!(
                "{groups} groups, {dying} dying and {} are left",
                Bytes(usage)
            )
        }),
        (!verdict.is_ok()).then(|| format!("the counts do not add up: {verdict}")),
    ];
    Ok((faults.into_iter().flatten().collect(), end))
}

/// This program again, with the same options.
fn start_client(address: SocketAddr, phase: Phase) -> Result<bool, Box<dyn Error>> {
    let phase = phase.to_possible_value().ok_or("a phase without a name")?;
    let mut client = Command::new(env::current_exe()?);
    client.args(env::args_os().skip(1)).args([
        "--client",
        &address.to_string(),
        "--phase",
        phase.get_name(),
    ]);
    Ok(client.status()?.success())
}

fn resident() -> String {
    let Some((now, most)) = system::resident() else {
        return String::new();
    };
    format!("; resident {}, at most {}", Bytes(now), Bytes(most))
}
