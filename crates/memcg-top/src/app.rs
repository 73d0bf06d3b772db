//! The program's state and what the keys do to it. Nothing here reads or writes.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::model::{Kind, Model};
use crate::sample::{Want, parent_and_name};
use crate::source::{Command, Update};

/// Characters of a line that is typed.
const TYPED_MAX: usize = 80;

#[derive(Debug)]
pub(crate) enum Prompt {
    Filter,
    Limit {
        path: String,
        file: &'static str,
        text: String,
    },
    Confirm {
        path: String,
        file: &'static str,
        to: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Link {
    /// Nothing has come yet.
    Opening,
    Live,
    Lost(String),
    Ended(String),
}

#[derive(Debug)]
pub(crate) struct App {
    /// The socket, or the recording.
    pub(crate) name: String,
    pub(crate) model: Model,
    pub(crate) link: Link,
    pub(crate) paused: bool,
    /// The keys are explained in the place of groups.
    pub(crate) help: bool,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) status: String,
    pub(crate) selected: String,
    /// The first line on the screen, and how many there are.
    pub(crate) offset: usize,
    height: usize,
}

impl App {
    pub(crate) fn new(name: String, depth: usize, height: usize) -> App {
        let model = Model::new(Want {
            depth,
            lines: height,
            ..Want::default()
        });
        let link = Link::Opening;
        let selected = "/".into();
        let status = String::new();
        App {
            name,
            model,
            link,
            paused: false,
            help: false,
            prompt: None,
            status,
            selected,
            offset: 0,
            height,
        }
    }

    pub(crate) fn page(&self) -> Option<&str> {
        self.model.want.page.as_deref()
    }

    pub(crate) fn update(&mut self, update: Update) {
        match update {
            Update::Sample(sample) => {
                self.link = Link::Live;
                self.model.apply(&sample);
            }
            Update::Lost(why) => self.link = Link::Lost(why),
            Update::Ended(why) => self.link = Link::Ended(why),
            Update::Said(what) => self.status = what,
        }
    }

    /// Keeps the selected line within `height` lines.
    pub(crate) fn fit(&mut self, height: usize) {
        self.height = height.max(1);
        let at = self.selected_at();
        let lines = self.model.lines().len();
        let lowest = (at + 1).saturating_sub(self.height);
        self.offset = self
            .offset
            .clamp(lowest, at)
            .min(lines.saturating_sub(self.height).max(lowest));
        // A page further, for the key that goes there.
        self.model.want.lines = self.offset + 2 * self.height;
    }

    /// The line that is selected; the first one where it has gone.
    pub(crate) fn selected_at(&self) -> usize {
        self.model
            .lines()
            .iter()
            .position(|line| line.path() == Some(&self.selected))
            .unwrap_or(0)
    }

    /// Returns what is to be done, or `None` to end.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Vec<Command>> {
        if key.kind == KeyEventKind::Release {
            return Some(Vec::new());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') {
                None
            } else {
                Some(Vec::new())
            };
        }
        self.status.clear();
        if std::mem::take(&mut self.help) {
            return Some(Vec::new());
        }
        match self.prompt.take() {
            Some(prompt) => Some(self.typed(prompt, key.code)),
            None => self.pressed(key.code),
        }
    }

    fn typed(&mut self, prompt: Prompt, key: KeyCode) -> Vec<Command> {
        match (prompt, key) {
            (Prompt::Filter, KeyCode::Enter) => {}
            (Prompt::Filter, KeyCode::Esc) => self.model.set_filter(String::new()),
            (Prompt::Filter, key) => {
                let mut filter = self.model.filter.clone();
                edit(&mut filter, key);
                self.model.set_filter(filter);
                self.prompt = Some(Prompt::Filter);
            }
            (Prompt::Limit { .. }, KeyCode::Esc) => {}
            (Prompt::Limit { path, file, text }, KeyCode::Enter) => {
                let to = text.trim().to_string();
                self.prompt = (!to.is_empty()).then_some(Prompt::Confirm { path, file, to });
            }
            (
                Prompt::Limit {
                    path,
                    file,
                    mut text,
                },
                key,
            ) => {
                edit(&mut text, key);
                self.prompt = Some(Prompt::Limit { path, file, text });
            }
            (Prompt::Confirm { path, file, to }, KeyCode::Char('y')) => {
                return vec![Command::Set { path, file, to }];
            }
            (Prompt::Confirm { .. }, _) => self.status = "no limit is set".into(),
        }
        Vec::new()
    }

    fn pressed(&mut self, key: KeyCode) -> Option<Vec<Command>> {
        match key {
            KeyCode::Char('q') => return None,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Esc if self.page().is_some() => self.model.want.page = None,
            KeyCode::Esc => self.model.set_filter(String::new()),
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Some(vec![Command::Pause(self.paused)]);
            }
            KeyCode::Char('M') => self.ask_limit("memory.max"),
            KeyCode::Char('H') => self.ask_limit("memory.high"),
            KeyCode::Char('L') => self.ask_limit("memory.low"),
            _ if self.page().is_some() => {
                if matches!(key, KeyCode::Enter | KeyCode::Left) {
                    self.model.want.page = None;
                }
            }
            KeyCode::Enter => self.model.want.page = Some(self.selected.clone()),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-(self.height as isize)),
            KeyCode::PageDown => self.step(self.height as isize),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Right | KeyCode::Char('l') => self.fold(false),
            KeyCode::Left | KeyCode::Char('h') => self.fold(true),
            KeyCode::Char('s') => self
                .model
                .set_sort(self.model.sort.next(), self.model.turned),
            KeyCode::Char('r') => self.model.set_sort(self.model.sort, !self.model.turned),
            KeyCode::Char('/') => self.prompt = Some(Prompt::Filter),
            _ => {}
        }
        Some(Vec::new())
    }

    fn step(&mut self, by: isize) {
        let lines = self.model.lines();
        let groups: Vec<&str> = lines.iter().filter_map(|line| line.path()).collect();
        let at = groups
            .iter()
            .position(|&path| path == self.selected)
            .unwrap_or(0);
        let to = at
            .saturating_add_signed(by)
            .min(groups.len().saturating_sub(1));
        if let Some(&path) = groups.get(to) {
            self.selected = path.to_string();
        }
    }

    fn fold(&mut self, fold: bool) {
        let lines = self.model.lines();
        let line = lines
            .iter()
            .find(|line| line.path() == Some(&self.selected));
        let Some(Kind::Group {
            is_open,
            has_children,
            ..
        }) = line.map(|line| line.kind)
        else {
            return;
        };
        if is_open == fold && has_children {
            let toggled = &mut self.model.want.toggled;
            if !toggled.remove(&self.selected) {
                toggled.insert(self.selected.clone());
            }
        } else if let (true, Some((parent, _))) = (fold, parent_and_name(&self.selected)) {
            self.selected = parent.to_string();
        }
    }

    fn ask_limit(&mut self, file: &'static str) {
        let path = self.page().unwrap_or(&self.selected).to_string();
        self.prompt = Some(Prompt::Limit {
            path,
            file,
            text: String::new(),
        });
    }
}

fn edit(text: &mut String, key: KeyCode) {
    match key {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(c) if text.len() < TYPED_MAX && !c.is_control() => text.push(c),
        _ => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use memcg_observe::protocol::Row;

    use super::*;
    use crate::sample::tests::row;
    use crate::sample::{Branch, FORMAT, Sample};

    pub(crate) fn app(rows: Vec<Row>) -> App {
        let mut app = App::new("test.sock".into(), 1, 10);
        app.update(Update::Sample(sample(1_000, rows)));
        app
    }

    pub(crate) fn sample(at: u64, children: Vec<Row>) -> Sample {
        let branches = vec![Branch {
            group: row("/", 1 << 20),
            children,
            rest: 5,
        }];
        Sample {
            format: FORMAT,
            at,
            page: None,
            branches,
            incidents: Vec::new(),
        }
    }

    fn press(app: &mut App, keys: &[KeyCode]) -> Option<Vec<Command>> {
        let mut last = Some(Vec::new());
        for &key in keys {
            last = app.key(KeyEvent::from(key));
        }
        last
    }

    fn chars(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn the_keys_move_and_fold() {
        let mut app = app((0..50)
            .map(|i| row(&format!("/g{i:02}"), 100 - i))
            .collect());
        press(&mut app, &[KeyCode::Down, KeyCode::Down]);
        app.fit(10);
        assert_eq!((app.selected.as_str(), app.offset), ("/g01", 0));
        press(&mut app, &[KeyCode::PageDown]);
        app.fit(10);
        assert_eq!(
            (app.selected.as_str(), app.offset, app.model.want.lines),
            ("/g11", 3, 23)
        );
        press(&mut app, &[KeyCode::End]);
        app.fit(10);
        assert_eq!(app.selected, "/g49");
        press(&mut app, &[KeyCode::Home]);
        app.fit(10);
        assert_eq!((app.selected.as_str(), app.offset), ("/", 0));
        // A group without groups below it does not unfold.
        press(&mut app, &[KeyCode::Down, KeyCode::Right]);
        assert!(app.model.want.toggled.is_empty());
        let children = (0..50).map(|i| Row {
            children: 1,
            ..row(&format!("/g{i:02}"), 100 - i)
        });
        app.update(Update::Sample(sample(2_000, children.collect())));
        press(&mut app, &[KeyCode::Right]);
        assert!(app.model.want.toggled.contains("/g00"));
        // Folds the group, then goes to the one above, then folds that.
        press(&mut app, &[KeyCode::Left, KeyCode::Left, KeyCode::Left]);
        assert_eq!((app.selected.as_str(), app.model.lines().len()), ("/", 1));
        assert!(press(&mut app, &chars("q")).is_none());
    }

    #[test]
    fn what_is_typed_has_a_length_and_no_control_characters() {
        let mut text = String::new();
        edit(&mut text, KeyCode::Char('\u{1b}'));
        (0..2 * TYPED_MAX).for_each(|_| edit(&mut text, KeyCode::Char('1')));
        assert_eq!(text, "1".repeat(TYPED_MAX));
    }

    #[test]
    fn a_limit_is_set_after_a_question() {
        let mut app = app(vec![row("/a", 1)]);
        press(&mut app, &[KeyCode::Down, KeyCode::Char('M')]);
        press(&mut app, &chars("51q2M"));
        press(
            &mut app,
            &[KeyCode::Left, KeyCode::Backspace, KeyCode::Enter],
        );
        assert!(matches!(&app.prompt, Some(Prompt::Confirm { to, .. }) if to == "51q2"));
        press(&mut app, &[KeyCode::Enter]);
        assert_eq!(
            (app.prompt.is_none(), app.status.as_str()),
            (true, "no limit is set")
        );
        press(&mut app, &chars("H1G"));
        let commands = press(&mut app, &[KeyCode::Enter, KeyCode::Char('y')]);
        let [Command::Set { path, file, to }] = &commands.unwrap()[..] else {
            panic!("no set")
        };
        assert_eq!([path, *file, to], ["/a", "memory.high", "1G"]);
        // Nothing typed, nothing asked.
        press(&mut app, &[KeyCode::Char('L'), KeyCode::Enter]);
        assert!(app.prompt.is_none());
    }

    #[test]
    fn a_filter_takes_all_letters_and_ends_with_escape() {
        let mut app = app(vec![row("/quick", 2), row("/slow", 1)]);
        press(&mut app, &chars("/quick"));
        assert_eq!(
            (app.model.filter.as_str(), app.model.lines().len()),
            ("quick", 2)
        );
        press(&mut app, &[KeyCode::Enter, KeyCode::Esc]);
        assert_eq!(
            (app.model.filter.as_str(), app.model.want.wide),
            ("", false)
        );
    }

    #[test]
    fn any_key_ends_the_help() {
        let mut app = app(vec![row("/a", 1)]);
        for key in [
            KeyCode::Char('?'),
            KeyCode::Char('q'),
            KeyCode::Esc,
            KeyCode::Down,
        ] {
            press(&mut app, &chars("?"));
            assert!(app.help);
            assert!(press(&mut app, &[key]).is_some());
            assert!(!app.help && app.selected == "/", "{key:?}");
        }
        // It is a letter where a line is typed.
        press(&mut app, &chars("/?"));
        assert_eq!((app.help, app.model.filter.as_str()), (false, "?"));
    }

    #[test]
    fn a_page_pause_and_the_end() {
        let mut app = app(vec![row("/a", 1)]);
        press(&mut app, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!(app.page(), Some("/a"));
        assert!(matches!(
            press(&mut app, &chars("p")).as_deref(),
            Some([Command::Pause(true)])
        ));
        press(&mut app, &[KeyCode::Esc]);
        assert_eq!(app.page(), None);
        app.update(Update::Lost("gone".into()));
        assert_eq!(app.link, Link::Lost("gone".into()));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(app.key(control_c).is_none());
    }
}
