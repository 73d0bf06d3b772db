//! The page of one group.

use memcg_observe::protocol::Incident;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::Line as TextLine;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::{BOLD, Theme};
use crate::app::App;
use crate::model::Seen;
use crate::text;

pub(super) fn page(frame: &mut Frame<'_>, app: &App, path: &str, area: Rect, theme: Theme) {
    let [title, figures, plot, holders] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(9),
        Constraint::Fill(1),
        Constraint::Length(5.min(area.height.saturating_sub(16))),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(text::clean(path)).style(BOLD), title);
    let holds = app.model.holders(path);
    let Some(seen) = app.model.seen(path) else {
        frame.render_widget(Paragraph::new("nothing is known of this group"), figures);
        return;
    };
    let [left, right] =
        Layout::horizontal([Constraint::Length(42), Constraint::Fill(1)]).areas(figures);
    frame.render_widget(Paragraph::new(figures_of(seen, holds.is_none())), left);
    frame.render_widget(Paragraph::new(news_of(seen, app.model.at)), right);
    if plot.width >= 20 && plot.height >= 3 {
        history(frame, seen, plot, theme);
    }
    let Some((children, rest)) = holds else {
        return;
    };
    let mut lines = vec![TextLine::styled("largest below it", BOLD)];
    for child in children.iter().take(3) {
        lines.push(
            format!(
                "{:>8} {}",
                text::bytes(child.row.usage),
                text::clean(&child.row.path)
            )
            .into(),
        );
    }
    lines.push(
        format!(
            "{:>8} own and others",
            text::bytes(other_than(&children, rest))
        )
        .into(),
    );
    if app.model.incidents.is_empty() {
        frame.render_widget(Paragraph::new(lines), holders);
        return;
    }
    let [holders, incidents] =
        Layout::horizontal([Constraint::Fill(2), Constraint::Fill(3)]).areas(holders);
    frame.render_widget(Paragraph::new(lines), holders);
    frame.render_widget(
        Paragraph::new(incidents_of(&app.model.incidents, app.model.at)),
        incidents,
    );
}

/// The newest first.
fn incidents_of(incidents: &[Incident], now: u64) -> Vec<TextLine<'static>> {
    let line = |incident: &Incident| {
        let Incident {
            at,
            kind,
            group,
            limited,
            counter,
            requested,
            ..
        } = incident;
        let amount = match counter {
            None => text::bytes(*requested),
            Some(counter) => format!(
                "{} of {}",
                text::count(*requested as f64),
                text::clean(counter)
            ),
        };
        let group = text::clean(group);
        let limited = text::clean(limited);
        let what = match kind.as_str() {
            "victim" => format!("cancelled {group} for {amount}"),
            "timed_out" => format!("timed out: {amount} to {group}"),
            _ => format!("refused {amount} to {group}"),
        };
        let by = if limited == group {
            String::new()
        } else {
            format!(" at {limited}")
        };
        TextLine::from(format!(
            "{:>5} s ago {what}{by}",
            now.saturating_sub(*at) / 1_000
        ))
    };
    let title = TextLine::styled("last refusals and victims", BOLD);
    std::iter::once(title)
        .chain(incidents.iter().rev().map(line))
        .collect()
}

/// The usage of the group beside its three largest children.
fn other_than(children: &[&Seen], rest: u64) -> u64 {
    children
        .iter()
        .skip(3)
        .fold(rest, |sum, child| sum.saturating_add(child.row.usage))
}

fn figures_of(seen: &Seen, has_gone: bool) -> Vec<TextLine<'static>> {
    let row = &seen.row;
    let rate = text::rate(seen.usage_rate());
    let pair = |a: &str, b: String, c: &str, d: String| {
        TextLine::from(format!("{a:<8}{b:>9}    {c:<9}{d:>9}"))
    };
    let refused = seen.refused_rate().map_or(String::new(), text::count);
    let gone = if has_gone {
        "it is not online any more; last seen:"
    } else {
        ""
    };
    vec![
        TextLine::styled(gone, BOLD),
        pair("usage", text::bytes(row.usage), "rate/s", rate),
        pair(
            "peak <=",
            text::bytes(row.peak),
            "credit <=",
            text::bytes(row.stocked_bound),
        ),
        pair(
            "max",
            text::limit(row.max),
            "forced",
            text::bytes(row.forced),
        ),
        pair(
            "high",
            text::limit(row.high),
            "waiting",
            text::count(row.waiting as f64),
        ),
        pair(
            "soft",
            text::limit(row.soft),
            "refused",
            text::count(row.refused as f64),
        ),
        pair(
            "some 10s",
            text::percent(row.pressure.some.avg10),
            "full 10s",
            text::percent(row.pressure.full.avg10),
        ),
        pair(
            "low, min",
            format!("{} {}", text::limit(row.low), text::limit(row.min)),
            "refused/s",
            refused,
        ),
        pair(
            "share",
            above_zero(row.share),
            "important",
            row.importance.map_or("-".into(), |of| of.to_string()),
        ),
    ]
}

fn above_zero(share: u32) -> String {
    if share == 0 {
        "-".into()
    } else {
        share.to_string()
    }
}

/// The events that have happened, the newest first.
fn news_of(seen: &Seen, now: u64) -> Vec<TextLine<'static>> {
    let mut events: Vec<(&String, u64, Option<u64>)> = seen
        .row
        .events
        .iter()
        .filter(|&(_, &count)| count > 0)
        .map(|(event, &count)| (event, count, seen.happened.get(event).copied()))
        .collect();
    events.sort_by_key(|&(event, _, at)| (std::cmp::Reverse(at), event));
    let line = |(event, count, at): (&String, u64, Option<u64>)| {
        let ago = at.map_or(String::new(), |at| {
            format!("  {} s ago", now.saturating_sub(at) / 1_000)
        });
        TextLine::from(format!(
            "{:<16}{:>6}{ago}",
            text::clean(event),
            text::count(count as f64)
        ))
    };
    std::iter::once(TextLine::styled("events, here and below", BOLD))
        .chain(events.into_iter().map(line))
        .collect()
}

fn history(frame: &mut Frame<'_>, seen: &Seen, area: Rect, theme: Theme) {
    let last = seen.history.back().map_or(0, |point| point.at);
    let ago = |at: u64| -(last.saturating_sub(at) as f64 / 1_000.0);
    let points: Vec<(f64, f64)> = seen
        .history
        .iter()
        .map(|point| (ago(point.at), point.usage as f64))
        .collect();
    let first = points.first().map_or(0.0, |point| point.0).min(-1.0);
    let most = points.iter().fold(1.0_f64, |most, point| most.max(point.1));
    let limits = [(seen.row.max, Color::Red), (seen.row.high, Color::Yellow)];
    // A limit far above would press the line to the ground.
    let near = limits
        .map(|(limit, colour)| (limit as f64, colour))
        .into_iter()
        .filter(|&(limit, _)| limit <= most * 4.0);
    let near: Vec<(f64, Color)> = near.collect();
    let top = near.iter().fold(most, |top, &(limit, _)| top.max(limit)) * 1.05;
    let straight: Vec<[(f64, f64); 2]> = near
        .iter()
        .map(|&(limit, _)| [(first, limit), (0.0, limit)])
        .collect();
    let mut sets: Vec<Dataset<'_>> = near
        .iter()
        .zip(&straight)
        .map(|(&(_, colour), ends)| {
            Dataset::default()
                .data(ends)
                .graph_type(GraphType::Line)
                .marker(Marker::Dot)
                .style(theme.fg(colour))
        })
        .collect();
    let usage = Dataset::default()
        .data(&points)
        .graph_type(GraphType::Line)
        .marker(Marker::Braille);
    sets.push(usage);
    let x = Axis::default()
        .bounds([first, 0.0])
        .labels([format!("{:.0} s", first), "now".into()]);
    let y = Axis::default()
        .bounds([0.0, top])
        .labels(["0".into(), text::bytes(top as u64)]);
    frame.render_widget(Chart::new(sets).x_axis(x).y_axis(y), area);
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::super::tests::{MIB, drawn, rows, two_seconds};
    use super::*;
    use crate::app::tests::sample;
    use crate::sample::tests::row;
    use crate::sample::{Branch, Sample};
    use crate::source::Update;

    #[test]
    fn a_page_has_figures_events_and_a_plot() {
        let mut app = two_seconds();
        app.key(KeyEvent::from(KeyCode::Down));
        app.key(KeyEvent::from(KeyCode::Enter));
        let screen = drawn(&mut app, 80, 24);
        assert!(
            screen.contains("it is not online any more"),
            "its children were not asked for yet: {screen}"
        );
        let branch = Branch {
            group: rows(40 * MIB, 9).remove(0),
            children: vec![row("/acme/x", MIB)],
            rest: 39 * MIB,
        };
        let refused = Incident {
            at: 3_000,
            group: "/acme/x".into(),
            limited: "/acme".into(),
            requested: MIB,
            ..Incident::default()
        };
        let kinds = ["refused", "timed_out", "victim"];
        let incidents = kinds
            .map(|kind| Incident {
                kind: kind.into(),
                ..refused.clone()
            })
            .into();
        let page = Some("/acme".into());
        let page = Sample {
            at: 8_000,
            page,
            branches: vec![branch],
            incidents,
            ..sample(0, vec![])
        };
        app.update(Update::Sample(page));
        let screen = drawn(&mut app, 80, 24);
        for text in [
            "/acme\n",
            "usage       40.0M",
            "max         64.0M",
            "rate/s       +1.6M",
            "refused          9",
            "some 10s   12.05%",
        ] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        for text in [
            "max                  9  5 s ago",
            "-7 s",
            "now",
            "67.2M",
            "    1.0M /acme/x",
            "   39.0M own and others",
        ] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        for text in [
            "largest below it                last refusals and victims",
            "    5 s ago cancelled /acme/x for 1.0M at /acme\n",
            "    5 s ago timed out: 1.0M to /acme/x at /acme\n",
            "    5 s ago refused 1.0M to /acme/x at /acme\n",
        ] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        let is_plotted = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        assert!(
            screen.chars().filter(|&c| is_plotted(c)).count() > 20,
            "{screen}"
        );
    }
}
