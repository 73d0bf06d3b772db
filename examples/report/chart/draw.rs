//! From a chart to elements.

use svg::Node;
use svg::node::Text;
use svg::node::element::Element;

use super::axis::Scale;
use super::layout::{Labels, PLAIN, SMALL, TITLE, element, number, place, text, title, width, wrap};
use super::palette::{SERIES, style};
use super::series::{Kind, Mark, Series};
use super::{Chart, Size};

/// Between the edge of the picture and what it shows.
const EDGE: f64 = 14.0;

/// Dashes of the lines, in the order of the colours.
const DASHES: [&str; 8] = ["none", "8 3", "2 3", "10 3 2 3", "5 2", "12 4", "3 2 1 2", "1 2"];

/// A line with more points than this is drawn without marks.
const MARKS_MAX: usize = 40;

/// The least height of the part within the axes, however much stands above it.
const PLOT_MIN: f64 = 210.0;

/// The picture; `alone`: as a file of its own, with its style.
pub(super) fn document(chart: &Chart, size: Size, alone: bool) -> Element {
    let (top, words) = head(chart, size.width);
    let size = Size { height: size.height.max(top + PLOT_MIN), ..size };
    let view = format!("0 0 {} {}", number(size.width), number(size.height));
    let attributes = [("class", "chart".into()), ("role", "img".into()), ("viewBox", view.into())];
    let mut root = element("svg", attributes);
    root.assign("aria-label", chart.title.as_str());
    if alone {
        root.assign("xmlns", "http://www.w3.org/2000/svg");
        root.assign("width", place(size.width));
        root.assign("height", place(size.height));
        let mut sheet = Element::new("style");
        sheet.append(Text::new(style()));
        root.append(sheet);
    }
    let all = [("width", place(size.width)), ("height", place(size.height)), ("rx", place(6.0))];
    let mut ground = element("rect", all);
    ground.assign("class", "ground");
    root.append(ground);
    words.into_iter().for_each(|word| root.append(word));
    Plot::new(chart, size, top).draw(&mut root);
    root
}

/// Title, note and legend, and where they end.
fn head(chart: &Chart, width_of_all: f64) -> (f64, Vec<Element>) {
    let (most, mut y, mut words) = (width_of_all - 2.0 * EDGE, EDGE, Vec::new());
    // The title is bold, and so a little wider.
    for line in wrap(&chart.title, most * 0.92, TITLE) {
        y += TITLE;
        words.push(text(EDGE, y, "title", &line));
        y += 4.0;
    }
    for line in wrap(&chart.note, most, SMALL) {
        y += SMALL + 2.0;
        words.push(text(EDGE, y, "small muted", &line));
        y += 2.0;
    }
    if chart.series.len() < 2 {
        return (y + 8.0, words);
    }
    let mut x = EDGE;
    y += 20.0;
    for (at, series) in chart.series.iter().enumerate() {
        let wide = 18.0 + width(&series.name, SMALL);
        if x > EDGE && x + wide > width_of_all - EDGE {
            (x, y) = (EDGE, y + 18.0);
        }
        words.push(key(series, at, x, y - 4.0));
        words.push(text(x + 18.0, y, "small", &series.name));
        x += wide + 12.0;
    }
    (y + 10.0, words)
}

/// The look of a series, for the legend.
fn key(series: &Series, at: usize, x: f64, y: f64) -> Element {
    match series.kind {
        Kind::Points => marker(at, x + 7.0, y),
        Kind::Line => path(at, &format!("M{} {}h14", number(x), number(y))),
        Kind::Layer | Kind::Bars => {
            let mut swatch = rect(x, y - 6.0, 12.0, 12.0);
            swatch.assign("class", format!("f{}", at % SERIES.len()));
            swatch
        }
    }
}

fn rect(x: f64, y: f64, width: f64, height: f64) -> Element {
    element("rect", [("x", place(x)), ("y", place(y)), ("width", place(width)), ("height", place(height))])
}

fn path(at: usize, data: &str) -> Element {
    let class = format!("line s{}", at % SERIES.len());
    element(
        "path",
        [("class", class.into()), ("stroke-dasharray", DASHES[at % DASHES.len()].into()), ("d", data.into())],
    )
}

/// A point, in the shape and the colour of its series.
fn marker(at: usize, x: f64, y: f64) -> Element {
    let shape = match at % 5 {
        0 => "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
        1 => "m-4.5-4.5h9v9h-9z",
        2 => "m0-6.2 5.6 9.8h-11.2z",
        3 => "m0-6 6 6-6 6-6-6z",
        _ => "m0 6.2 5.6-9.8h-11.2z",
    };
    let class = format!("f{} edge", at % SERIES.len());
    element("path", [("class", class.into()), ("d", format!("M{} {}{shape}", number(x), number(y)).into())])
}

/// The part of the picture within the axes.
struct Plot<'a> {
    chart: &'a Chart,
    x: Scale,
    y: Scale,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    head: f64,
    labels: Labels,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart, size: Size, head: f64) -> Self {
        // The words above a bar or a rule need room below the axis' label.
        let bars = chart.series.iter().any(|series| series.kind == Kind::Bars);
        let top = head
            + if chart.y.label.is_empty() { 6.0 } else { 24.0 }
            + if bars || !chart.rules.is_empty() { 14.0 } else { 0.0 };
        let lines = chart.x.names.iter().map(|name| wrap(name, band(chart, size.width - 80.0), SMALL).len());
        let names = lines.max().unwrap_or(1) as f64;
        let label = if chart.x.label.is_empty() { 0.0 } else { 18.0 };
        // A chart whose head is high gets no less than this.
        let bottom = (size.height - EDGE - label - names * 14.0 - 4.0).max(top + 40.0);
        let y = chart.y.scale(&heights(chart), ((bottom - top) / 44.0) as usize, true);
        let ticks = y.ticks.iter().map(|(_, tick)| width(tick, SMALL)).fold(0.0, f64::max);
        let (left, right) = (EDGE + ticks + 6.0, size.width - EDGE - 12.0);
        let xs: Vec<f64> = chart.series.iter().flat_map(|series| &series.marks).map(|mark| mark.x).collect();
        let points = chart.series.iter().any(|series| series.kind == Kind::Points);
        let x = chart.x.scale(&xs, ((right - left) / 92.0) as usize, points);
        Self { chart, x, y, left, top, right, bottom, head, labels: Labels::default() }
    }

    fn place_x(&self, value: f64) -> f64 {
        self.left + self.x.part(value) * (self.right - self.left)
    }

    fn place_y(&self, value: f64) -> f64 {
        self.bottom - self.y.part(value) * (self.bottom - self.top)
    }

    fn draw(mut self, root: &mut Element) {
        self.draw_y(root);
        self.draw_layers(root);
        self.draw_bars(root);
        self.draw_x(root);
        for (at, series) in self.chart.series.iter().enumerate() {
            if series.kind == Kind::Line {
                self.draw_line(at, series, root);
            }
        }
        self.draw_points(root);
        self.draw_rules(root);
        self.draw_labels(root);
    }

    /// The vertical axis: its label, its ticks, the grid.
    fn draw_y(&self, root: &mut Element) {
        if !self.chart.y.label.is_empty() {
            root.append(text(EDGE, self.head + 13.0, "small muted", &self.chart.y.label));
        }
        for (value, tick) in &self.y.ticks {
            let y = self.place_y(*value);
            root.append(line("grid", [self.left, y, self.right, y]));
            root.append(text(self.left - 6.0, y + 4.0, "small muted end", tick));
        }
    }

    /// The horizontal axis.
    fn draw_x(&self, root: &mut Element) {
        root.append(line("axis", [self.left, self.bottom, self.right, self.bottom]));
        let band = band(self.chart, self.right - self.left);
        let mut free = f64::NEG_INFINITY;
        for (value, tick) in &self.x.ticks {
            let x = self.place_x(*value);
            let lines = if self.chart.x.names.is_empty() { vec![tick.clone()] } else { wrap(tick, band, SMALL) };
            let half = lines.iter().map(|line| width(line, SMALL)).fold(0.0, f64::max) / 2.0;
            if self.chart.x.names.is_empty() {
                root.append(line("axis", [x, self.bottom, x, self.bottom + 4.0]));
                if x - half < free {
                    continue;
                }
                free = x + half + 4.0;
            }
            for (at, line) in lines.iter().enumerate() {
                root.append(text(x, self.bottom + 16.0 + 14.0 * at as f64, "small muted middle", line));
            }
        }
        let label = &self.chart.x.label;
        if !label.is_empty() {
            let lines = self.x.ticks.iter().map(|(_, tick)| match self.chart.x.names.is_empty() {
                true => 1,
                false => wrap(tick, band, SMALL).len(),
            });
            let y = self.bottom + 20.0 + 14.0 * lines.max().unwrap_or(1) as f64;
            root.append(text((self.left + self.right) / 2.0, y, "small muted middle", label));
        }
    }

    /// From the highest to the lowest: each covers what belongs to those below it.
    fn draw_layers(&self, root: &mut Element) {
        let layers = || self.chart.series.iter().enumerate().filter(|(_, series)| series.kind == Kind::Layer);
        let mut sums: Vec<Vec<f64>> = Vec::new();
        for (_, layer) in layers() {
            let below = sums.last();
            let sum = |(at, mark): (usize, &Mark)| mark.y + below.and_then(|below| below.get(at)).unwrap_or(&0.0);
            sums.push(layer.marks.iter().enumerate().map(sum).collect());
        }
        for ((at, layer), sums) in layers().zip(&sums).collect::<Vec<_>>().into_iter().rev() {
            let (Some(first), Some(last)) = (layer.marks.first(), layer.marks.last()) else { continue };
            let mut data = format!("M{} {}", number(self.place_x(first.x)), number(self.bottom));
            for (mark, &sum) in layer.marks.iter().zip(sums) {
                data += &format!("L{} {}", number(self.place_x(mark.x)), number(self.place_y(sum)));
            }
            data += &format!("L{} {}z", number(self.place_x(last.x)), number(self.bottom));
            let class = format!("f{} edge", at % SERIES.len());
            let mut area =
                element("path", [("class", class.into()), ("stroke-width", "0.7".into()), ("d", data.into())]);
            area.append(title(&layer.name));
            root.append(area);
        }
    }

    fn draw_bars(&mut self, root: &mut Element) {
        let bars = self.chart.series.iter().filter(|series| series.kind == Kind::Bars).count();
        let wide = (band(self.chart, self.right - self.left) * 0.84 / bars.max(1) as f64).min(64.0);
        let all = self.chart.series.iter().enumerate().filter(|(_, series)| series.kind == Kind::Bars);
        for (place, (at, series)) in all.enumerate() {
            for mark in &series.marks {
                let x = self.place_x(mark.x) + (place as f64 - bars as f64 / 2.0) * wide;
                let y = self.place_y(mark.y);
                let mut bar = rect(x + 1.0, y, (wide - 2.0).max(0.5), self.bottom - y);
                bar.assign("class", format!("f{}", at % SERIES.len()));
                bar.append(title(&self.told(series, mark)));
                root.append(bar);
                self.draw_range(mark, x + wide / 2.0, root);
                let label = if mark.label.is_empty() { self.chart.y.format(mark.y) } else { mark.label.clone() };
                let above = mark.range.map_or(y, |(_, most)| self.place_y(most).min(y)) - 5.0;
                if width(&label, SMALL) <= wide.max(band(self.chart, self.right - self.left) / bars as f64) {
                    root.append(text(x + wide / 2.0, above, "small middle halo", &label));
                }
            }
        }
    }

    /// From the least to the most of several runs.
    fn draw_range(&self, mark: &Mark, x: f64, root: &mut Element) {
        let Some((least, most)) = mark.range else { return };
        let (lower, upper) = (self.place_y(least), self.place_y(most));
        root.append(line("axis", [x, lower, x, upper]));
        for y in [lower, upper] {
            root.append(line("axis", [x - 3.0, y, x + 3.0, y]));
        }
    }

    fn draw_line(&self, at: usize, series: &Series, root: &mut Element) {
        let mut data = String::new();
        for mark in &series.marks {
            let step = if data.is_empty() { 'M' } else { 'L' };
            data += &format!("{step}{} {}", number(self.place_x(mark.x)), number(self.place_y(mark.y)));
        }
        let mut line = path(at, &data);
        line.append(title(&series.name));
        root.append(line);
    }

    /// Points, and the marks of lines that have few.
    fn draw_points(&mut self, root: &mut Element) {
        for (at, series) in self.chart.series.iter().enumerate() {
            let marked = series.kind == Kind::Line && series.marks.len() <= MARKS_MAX;
            if series.kind != Kind::Points && !marked {
                continue;
            }
            for mark in &series.marks {
                let (x, y) = (self.place_x(mark.x), self.place_y(mark.y));
                self.draw_range(mark, x, root);
                let mut point = marker(at, x, y);
                point.append(title(&self.told(series, mark)));
                root.append(point);
                self.labels.keep_free(x - 6.0, y - 6.0, 12.0, 12.0);
            }
        }
    }

    fn draw_rules(&mut self, root: &mut Element) {
        for (name, value) in &self.chart.rules {
            let y = self.place_y(*value);
            root.append(line("rule", [self.left, y, self.right, y]));
            let baseline = if y - self.head < PLAIN + 5.0 { y + 15.0 } else { y - 6.0 };
            root.append(text(self.right - 4.0, baseline, "small end halo", name));
            let wide = width(name, SMALL);
            self.labels.keep_free(self.right - 4.0 - wide, baseline - SMALL, wide, SMALL);
        }
    }

    fn draw_labels(&mut self, root: &mut Element) {
        let bounds = [self.left, self.top - 8.0, self.right + 10.0, self.bottom];
        for series in self.chart.series.iter().filter(|series| matches!(series.kind, Kind::Points | Kind::Line)) {
            for mark in series.marks.iter().filter(|mark| !mark.label.is_empty()) {
                let at = [self.place_x(mark.x), self.place_y(mark.y)];
                if let Some(label) = self.labels.beside(&mark.label, at, bounds) {
                    root.append(label);
                }
            }
        }
    }

    /// A figure in words.
    fn told(&self, series: &Series, mark: &Mark) -> String {
        let x = match self.chart.x.names.get(mark.x as usize) {
            Some(name) => name.clone(),
            None => self.chart.x.format(mark.x),
        };
        let y = self.chart.y.format(mark.y);
        let range = mark.range.map(|(least, most)| (self.chart.y.format(least), self.chart.y.format(most)));
        let range = range.map_or_else(String::new, |(least, most)| format!(" ({least} to {most})"));
        let label = if mark.label.is_empty() { String::new() } else { format!(", {}", mark.label) };
        format!("{}{label}: {x}, {y}{range}", series.name)
    }
}

/// The width of one category.
fn band(chart: &Chart, width: f64) -> f64 {
    width / chart.x.names.len().max(1) as f64
}

fn line(class: &str, [x1, y1, x2, y2]: [f64; 4]) -> Element {
    element(
        "line",
        [("class", class.into()), ("x1", place(x1)), ("y1", place(y1)), ("x2", place(x2)), ("y2", place(y2))],
    )
}

/// All figures that the vertical axis must hold.
fn heights(chart: &Chart) -> Vec<f64> {
    let mut heights: Vec<f64> = chart.rules.iter().map(|&(_, y)| y).collect();
    let mut stack: Vec<f64> = Vec::new();
    for series in &chart.series {
        if matches!(series.kind, Kind::Layer | Kind::Bars) && !chart.y.is_log() {
            heights.push(0.0);
        }
        for (at, mark) in series.marks.iter().enumerate() {
            heights.extend(mark.range.map(|(least, _)| least));
            heights.extend(mark.range.map(|(_, most)| most));
            match series.kind {
                Kind::Layer if at < stack.len() => stack[at] += mark.y,
                Kind::Layer => stack.push(mark.y),
                _ => heights.push(mark.y),
            }
        }
    }
    heights.extend(stack);
    heights
}
