//! Any bytes as a recording of `memcg-top`: it shows the samples, writes them as it reads them, and
//! ends with an error.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs` of the
//! crate.
#![cfg_attr(fuzzing, no_main)]
// The program is no library, so its files are parts of this one, which does not use all of them.
#![allow(dead_code)]

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

#[path = "../../memcg-top/src/app.rs"]
mod app;
#[path = "../../memcg-top/src/client.rs"]
mod client;
#[path = "../../memcg-top/src/model.rs"]
mod model;
#[path = "../../memcg-top/src/sample.rs"]
mod sample;
#[path = "../../memcg-top/src/source.rs"]
mod source;
#[path = "../../memcg-top/src/text.rs"]
mod text;
#[path = "../../memcg-top/src/view/mod.rs"]
mod view;

use app::App;
use source::Update;
use view::Theme;

/// Levels that are unfolded: more than the inputs have.
const DEPTH: usize = 1_000;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

fn run(data: &[u8]) {
    let mut bytes = data;
    let mut line = 0;
    let mut app = App::new("recording".into(), DEPTH, 24);
    loop {
        match source::replayed(&mut bytes, &mut line) {
            Ok(Some(sample)) => {
                let written = serde_json::to_string(&sample).expect("texts and numbers") + "\n";
                let read =
                    source::replayed(&mut written.as_bytes(), &mut 0).expect("what was written");
                assert_eq!(read.as_ref(), Some(&sample));
                let json = text::clean_json(&written[..written.len() - 1]);
                assert!(!json.contains(char::is_control));
                app.update(Update::Sample(sample));
            }
            Ok(None) => break,
            Err(fault) => {
                let said = fault.to_string();
                assert!(
                    said.starts_with(&format!("recording, line {line}: ")),
                    "{said}"
                );
                app.update(Update::Ended(said));
                break;
            }
        }
    }
    let plain = view::plain(&app.model, 80);
    assert!(
        !plain.contains(|c: char| c != '\n' && c.is_control()),
        "{plain:?}"
    );
    let mut terminal = Terminal::new(TestBackend::new(120, 30)).expect("a terminal in memory");
    // The tree, by each order, and the page of the group that comes first.
    let keys = [
        KeyCode::Home,
        KeyCode::Char('s'),
        KeyCode::Char('s'),
        KeyCode::Down,
        KeyCode::Enter,
        KeyCode::Esc,
    ];
    for key in keys {
        app.key(KeyEvent::from(key));
        terminal
            .draw(|frame| view::draw(frame, &mut app, Theme { colours: true }))
            .expect("a terminal in memory");
        let cells = &terminal.backend().buffer().content;
        assert!(
            !cells
                .iter()
                .any(|cell| cell.symbol().contains(char::is_control))
        );
    }
}

#[cfg(not(fuzzing))]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(run)
}
