//! One page of HTML that needs nothing from outside: words, charts and tables, readable on a telephone and on a desk,
//! in light and in dark. It is well-formed XML too.

use svg::Node;
use svg::node::Text;
use svg::node::element::Element;

use crate::chart::{self, Chart, Size};
use crate::table::Table;
use crate::terminal::State;

/// A page, from its top on.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: Vec<Element>,
}

/// Of the page, beside the charts' own.
const STYLE: &str = "body{margin:0;padding:16px;max-width:1150px;margin-inline:auto;background:#fff;color:#1f2328;\
    font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}h1{font-size:1.5rem;line-height:1.25}\
    h2{font-size:1.15rem}svg{width:100%;height:auto;display:block;margin:12px 0}.narrow{display:none}\
    .scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\
    th,td{padding:4px 10px;text-align:left;border-bottom:1px solid #d8dee4;white-space:pre;vertical-align:top}\
    .right{text-align:right}.good{color:#00703c}.tense{color:#7a5b00}.bad{color:#b3261e;font-weight:600}\
    code{overflow-wrap:anywhere}\
    @media(max-width:700px){.wide{display:none}.narrow{display:block}}\
    @media(prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}th,td{border-color:#30363d}\
    .good{color:#3ddbac}.tense{color:#f0e442}.bad{color:#ff8f85}}";

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Self {
        let title = title.into();
        Self { body: vec![element("h1", "", &title)], title }
    }

    /// A line of text, with its state.
    #[must_use]
    pub fn line(mut self, text: &str, state: State) -> Self {
        self.body.push(element("p", class(state), text));
        self
    }

    /// The head of a part.
    #[must_use]
    pub fn part(mut self, text: &str) -> Self {
        self.body.push(element("h2", "", text));
        self
    }

    /// A chart, in two sizes of which a browser shows the one that fits.
    #[must_use]
    pub fn chart(mut self, chart: &Chart) -> Self {
        for (name, size) in [("chart wide", Size { width: 1100.0, height: 420.0 }), ("chart narrow", Size::NARROW)] {
            let mut picture = chart.inline(size);
            picture.assign("class", name);
            self.body.push(picture);
        }
        self
    }

    /// A table, which scrolls by itself where it is too wide.
    #[must_use]
    pub fn table(mut self, table: &Table) -> Self {
        let heads: Vec<_> = table.heads().collect();
        let side = |at: usize| if heads[at].1 { "right" } else { "" };
        let mut whole = Element::new("table");
        let mut head = Element::new("tr");
        heads.iter().enumerate().for_each(|(at, (name, _))| head.append(element("th", side(at), name)));
        whole.append(head);
        for row in table.rows() {
            let mut line = Element::new("tr");
            for (at, (text, state)) in row.enumerate() {
                line.append(element("td", &format!("{} {}", side(at), class(state)), text));
            }
            whole.append(line);
        }
        let mut scroll = Element::new("div");
        scroll.assign("class", "scroll");
        scroll.append(whole);
        self.body.push(scroll);
        self
    }

    /// The page as text.
    pub fn html(self) -> String {
        let mut head = Element::new("head");
        let mut letters = Element::new("meta");
        letters.assign("charset", "utf-8");
        let mut view = Element::new("meta");
        view.assign("name", "viewport");
        view.assign("content", "width=device-width,initial-scale=1");
        let mut scheme = Element::new("meta");
        scheme.assign("name", "color-scheme");
        scheme.assign("content", "light dark");
        [letters, view, scheme].into_iter().for_each(|meta| head.append(meta));
        head.append(element("title", "", &self.title));
        head.append(element("style", "", &format!("{STYLE}{}", chart::style())));
        let mut body = Element::new("body");
        self.body.into_iter().for_each(|part| body.append(part));
        let mut root = Element::new("html");
        root.assign("lang", "en");
        root.append(head);
        root.append(body);
        format!("<!DOCTYPE html>\n{root}\n")
    }
}

fn class(state: State) -> &'static str {
    match state {
        State::Plain | State::Name => "",
        State::Good => "good",
        State::Tense => "tense",
        State::Bad => "bad",
    }
}

fn element(name: &str, class: &str, text: &str) -> Element {
    let mut element = Element::new(name);
    if !class.trim().is_empty() {
        element.assign("class", class.trim());
    }
    element.append(Text::new(text));
    element
}

#[cfg(test)]
mod tests {
    use super::Page;
    use crate::chart::{Axis, Chart, Series};
    use crate::table::{Column, Table};
    use crate::terminal::State;

    #[test]
    fn a_page_has_all_and_needs_nothing() {
        let mut table = Table::new([Column::words("a & b"), Column::figures("n")]);
        table.add(["<script>", "1"]);
        let chart = Chart::new("c").x(Axis::new("x")).with(Series::line("l").at(0.0, 1.0).at(1.0, 2.0));
        let page = Page::new("t").line("no <b>", State::Bad).part("p").chart(&chart).table(&table).html();
        assert_eq!(page.matches("<svg").count(), 2, "one for each width");
        assert!(page.contains("&lt;script&gt;") && page.contains("a &amp; b") && !page.contains("<script"));
        for outside in ["http", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }
}
