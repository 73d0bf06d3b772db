//! A terminal program that shows the groups of a running memcg service, through the socket of
//! memcg-observe.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use clap::Parser;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

#[cfg(not(unix))]
compile_error!("memcg-top asks a Unix socket");

mod app;
mod client;
mod model;
mod sample;
mod source;
mod text;
mod view;

use app::App;
use model::Model;
use sample::Want;
use source::{Command, Source, SourceError};
use view::Theme;

/// The time that a key or a sample may wait to be seen.
const TICK: Duration = Duration::from_millis(50);

/// Shows the groups of a running service: who holds what, who waits, what is refused.
///
/// The service opens the socket with `memcg_observe::serve`.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The service's socket
    #[arg(required_unless_present = "replay", conflicts_with = "replay")]
    socket: Option<PathBuf>,
    /// Shows a recording in the place of a service
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    replay: Option<PathBuf>,
    /// Keeps all that is asked for in a new file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Prints the groups once and ends; of a recording, its last ones
    #[arg(long)]
    once: bool,
    /// Prints a line of JSON for each sample
    #[arg(long)]
    json: bool,
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Levels that are unfolded at first
    #[arg(long, value_name = "LEVELS", default_value = "1")]
    depth: usize,
    /// Groups that --once and --json show, the root included
    #[arg(long, value_name = "GROUPS", default_value = "20", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    top: u16,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number".to_string())?;
    if !(0.05..=3_600.0).contains(&seconds) {
        return Err("it is from 0.05 to 3600".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output, such as `head`, has closed it: it has enough.
        Err(fault)
            if fault
                .downcast_ref()
                .is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(fault) => {
            let _ = writeln!(
                io::stderr(),
                "memcg-top: {}",
                text::clean(&fault.to_string())
            );
            ExitCode::FAILURE
        }
    }
}

type Fault = Box<dyn std::error::Error>;

fn run(arguments: &Arguments) -> Result<(), Fault> {
    let (source, name) = open(arguments)?;
    let want = Want {
        depth: arguments.depth,
        lines: usize::from(arguments.top),
        ..Want::default()
    };
    match (arguments.json, arguments.once) {
        (true, once) => print_json(source, &want, arguments, once),
        (false, true) => print_once(source, want, arguments),
        (false, false) if !io::stdout().is_terminal() => {
            Err("the output is no terminal: use --once or --json".into())
        }
        (false, false) => in_terminal(source, name, arguments),
    }
}

fn open(arguments: &Arguments) -> Result<(Source, String), Fault> {
    let named = |path: &Path, fault: io::Error| format!("{}: {fault}", path.display());
    let path = arguments
        .replay
        .as_ref()
        .or(arguments.socket.as_ref())
        .ok_or("no socket")?;
    let mut source = match arguments.replay {
        Some(_) => Source::recording(path).map_err(|fault| named(path, fault))?,
        None => Source::service(path),
    };
    if let Some(file) = &arguments.record {
        source = source.record(file).map_err(|fault| named(file, fault))?;
    }
    Ok((source, path.display().to_string()))
}

fn print_once(mut source: Source, want: Want, arguments: &Arguments) -> Result<(), Fault> {
    let mut model = Model::new(want);
    let mut is_empty = true;
    // A recording whose last line is cut has all that stands before it.
    let ended = loop {
        match source.next(&model.want) {
            Ok(Some(sample)) => model.apply(&sample),
            Ok(None) => break Ok(()),
            Err(fault) if is_empty => return Err(fault.into()),
            Err(fault) => break Err(fault.into()),
        }
        is_empty = false;
        if arguments.replay.is_none() {
            break Ok(());
        }
    };
    let width = match ratatui::crossterm::terminal::size() {
        Ok((width, _)) if io::stdout().is_terminal() => width,
        _ => 80,
    };
    io::stdout().write_all(view::plain(&model, width).as_bytes())?;
    ended
}

/// A service that is lost is asked again, unless one answer is enough.
fn print_json(
    mut source: Source,
    want: &Want,
    arguments: &Arguments,
    once: bool,
) -> Result<(), Fault> {
    let mut last = None;
    let ended = loop {
        match source.next(want) {
            Ok(Some(sample)) => {
                let line = text::clean_json(&serde_json::to_string(&sample)?);
                last = Some(line);
            }
            Ok(None) => break Ok(()),
            Err(SourceError::Service(fault)) if !once => {
                writeln!(
                    io::stderr(),
                    "memcg-top: {}",
                    text::clean(&fault.to_string())
                )?;
            }
            // As for a table.
            Err(fault) => break Err(fault.into()),
        }
        if once && arguments.replay.is_some() {
            continue;
        }
        if let Some(line) = last.take() {
            writeln!(io::stdout(), "{line}")?;
        }
        if once {
            return Ok(());
        }
        if arguments.replay.is_none() {
            thread::sleep(arguments.interval);
        }
    };
    if let Some(line) = last {
        writeln!(io::stdout(), "{line}")?;
    }
    ended
}

fn in_terminal(source: Source, name: String, arguments: &Arguments) -> Result<(), Fault> {
    let (commands, to_source) = mpsc::channel();
    let (from_source, updates) = mpsc::channel();
    let interval = arguments.interval;
    thread::Builder::new()
        .name("memcg-top-ask".into())
        .spawn(move || {
            source::run(source, interval, &to_source, &from_source);
        })?;
    // The name of the variable is a convention of many programs.
    let theme = Theme {
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let ending = Ending::new()?;
    let mut terminal = ratatui::try_init()?;
    let app = App::new(name, arguments.depth, usize::from(terminal.size()?.height));
    let result = watch(&mut terminal, app, theme, &ending, &commands, &updates);
    let restored = ratatui::try_restore();
    // The terminal is the shell's again: now the signal may do what it does.
    ending.follow();
    restored?;
    result
}

/// The signal that ends the program, once one has come. It is followed when the terminal is given
/// back.
struct Ending(Arc<AtomicI32>);

impl Ending {
    /// How long the program has to give the terminal back. One that is gone lets no read end, so the
    /// thread of [`watch`] may never see the signal.
    const TIME: Duration = Duration::from_secs(1);

    fn new() -> io::Result<Ending> {
        let came = Arc::new(AtomicI32::new(0));
        let ending = Ending(Arc::clone(&came));
        let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
        thread::Builder::new()
            .name("memcg-top-end".into())
            .spawn(move || {
                for signal in signals.forever() {
                    came.store(signal, Ordering::Relaxed);
                    thread::sleep(Ending::TIME);
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            })?;
        Ok(ending)
    }

    fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the process as the signal would have done, so that who has sent it sees that.
    fn follow(&self) {
        let signal = self.0.load(Ordering::Relaxed);
        if signal != 0 {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}

fn watch(
    terminal: &mut DefaultTerminal,
    mut app: App,
    theme: Theme,
    ending: &Ending,
    commands: &mpsc::Sender<Command>,
    updates: &mpsc::Receiver<source::Update>,
) -> Result<(), Fault> {
    let mut asked = None;
    let mut is_new = true;
    loop {
        if is_new {
            terminal.draw(|frame| view::draw(frame, &mut app, theme))?;
        }
        if asked.as_ref() != Some(&app.model.want) {
            asked = Some(app.model.want.clone());
            commands.send(Command::Want(app.model.want.clone()))?;
        }
        is_new = false;
        if ending.has_come() {
            return Ok(());
        }
        if event::poll(TICK)? {
            is_new = true;
            if let Event::Key(key) = event::read()? {
                let Some(todo) = app.key(key) else {
                    return Ok(());
                };
                todo.into_iter()
                    .try_for_each(|command| commands.send(command))?;
            }
        }
        loop {
            match updates.try_recv() {
                Ok(update) => app.update(update),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err("the thread that asks has ended".into());
                }
            }
            is_new = true;
        }
    }
}
