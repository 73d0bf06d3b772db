//! One page of metrics: the tree, and what prints figures of its own, such as an admission layer.
//!
//! A page is read whole or not at all: a family that stands there twice, a line behind the end and a
//! name that does not fit its type each lose all of it. So the figures of the layers are not put behind
//! those of the tree as they are, but taken apart and put together by family, and what would lose the
//! page is left out of it.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What prints figures.
type Prints = Arc<dyn fmt::Display + Send + Sync>;

/// Something that prints figures, by the name that its samples get.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) name: String,
    figures: Prints,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("name", &self.name).finish()
    }
}

impl Layer {
    pub(crate) fn new(name: &str, figures: impl fmt::Display + Send + Sync + 'static) -> Layer {
        Layer {
            name: name.to_string(),
            figures: Arc::new(figures),
        }
    }

    /// The text; nothing where it panics, for the page of the tree is not the layer's to lose.
    fn text(&self) -> String {
        let print = || {
            let mut text = String::new();
            // A text takes whatever is written to it.
            let _ = write!(text, "{}", self.figures);
            text
        };
        catch_unwind(AssertUnwindSafe(print)).unwrap_or_else(|payload| {
            // What a panic carries is foreign, too: where its drop panics, that is leaked.
            if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(next);
            }
            String::new()
        })
    }
}

/// The families of the layers, as text for a page that has the families of `tree` already.
pub(crate) fn beside(tree: &str, layers: &[Layer]) -> String {
    let mut taken: HashSet<String> = HashSet::new();
    for said in tree.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        if let Some((name, kind)) = said.split_once(' ') {
            taken.extend(names_of(name, Kind::of(kind)));
        }
    }
    let mut families: Vec<Family> = Vec::new();
    for layer in layers {
        for family in families_of(&layer.text(), &layer.name) {
            match families.iter_mut().find(|known| known.name == family.name) {
                // Of another type, it is another family of that name.
                Some(known) if known.kind == family.kind => known.samples.extend(family.samples),
                Some(_) => {}
                None => {
                    let names: Vec<String> = names_of(&family.name, family.kind).collect();
                    if !names.iter().any(|name| taken.contains(name)) {
                        taken.extend(names);
                        families.push(family);
                    }
                }
            }
        }
    }
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        family.print(&mut text);
    }
    text
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    GaugeHistogram,
    Summary,
    Info,
    StateSet,
    Unknown,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Counter,
        Kind::Gauge,
        Kind::Histogram,
        Kind::GaugeHistogram,
        Kind::Summary,
        Kind::Info,
        Kind::StateSet,
        Kind::Unknown,
    ];

    fn of(word: &str) -> Kind {
        let known = Kind::ALL.into_iter().find(|kind| kind.word() == word);
        known.unwrap_or(Kind::Unknown)
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::GaugeHistogram => "gaugehistogram",
            Kind::Summary => "summary",
            Kind::Info => "info",
            Kind::StateSet => "stateset",
            Kind::Unknown => "unknown",
        }
    }

    /// The word for it in the older text, and what a name there has behind it.
    fn older(self) -> (&'static str, &'static str) {
        match self {
            Kind::Counter => ("counter", "_total"),
            Kind::Info => ("gauge", "_info"),
            Kind::StateSet => ("gauge", ""),
            Kind::Unknown | Kind::GaugeHistogram => ("untyped", ""),
            Kind::Gauge | Kind::Histogram | Kind::Summary => (self.word(), ""),
        }
    }

    /// What the names of samples have behind that of their family.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Counter => &["_total", "_created"],
            Kind::Histogram => &["_bucket", "_count", "_sum", "_created"],
            Kind::GaugeHistogram => &["_bucket", "_gcount", "_gsum"],
            Kind::Summary => &["", "_count", "_sum", "_created"],
            Kind::Info => &["_info"],
            Kind::Gauge | Kind::StateSet | Kind::Unknown => &[""],
        }
    }
}

/// The names that a family takes: no other may have one of them.
fn names_of(name: &str, kind: Kind) -> impl Iterator<Item = String> {
    let of_samples = kind.suffixes().iter().filter(|suffix| !suffix.is_empty());
    [name.to_string()]
        .into_iter()
        .chain(of_samples.map(move |suffix| format!("{name}{suffix}")))
}

#[derive(Debug)]
struct Family {
    name: String,
    kind: Kind,
    help: Option<String>,
    unit: Option<String>,
    /// Lines, with the label of their layer.
    samples: Vec<String>,
}

impl Family {
    fn print(&self, text: &mut String) {
        let Family { name, kind, .. } = self;
        if let Some(help) = &self.help {
            text.extend(["# HELP ", name, " ", help, "\n"]);
        }
        text.extend(["# TYPE ", name, " ", kind.word(), "\n"]);
        // There are parsers that refuse a histogram with a unit. The name has it anyway.
        let may_have_unit = matches!(self.kind, Kind::Counter | Kind::Gauge);
        if let Some(unit) = self.unit.as_ref().filter(|_| may_have_unit) {
            text.extend(["# UNIT ", name, " ", unit, "\n"]);
        }
        for line in &self.samples {
            text.extend([line, "\n"]);
        }
    }

    fn has(&self, sample: &str) -> bool {
        let suffix = sample.strip_prefix(&*self.name);
        suffix.is_some_and(|suffix| self.kind.suffixes().contains(&suffix))
    }
}

/// The families of a text in the format of OpenMetrics. What is none, the end included, is left out.
fn families_of(text: &str, layer: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            let mut words = said.splitn(3, ' ');
            if let (Some(word @ ("HELP" | "TYPE" | "UNIT")), Some(name), Some(rest)) =
                (words.next(), words.next(), words.next())
                && is_name(name)
            {
                let at = families.iter().position(|family| family.name == name);
                let at = at.unwrap_or_else(|| {
                    families.push(Family {
                        name: name.to_string(),
                        kind: Kind::Unknown,
                        help: None,
                        unit: None,
                        samples: Vec::new(),
                    });
                    families.len() - 1
                });
                let family = &mut families[at];
                match word {
                    "HELP" => family.help = Some(rest.to_string()),
                    "TYPE" => {
                        family.kind = Kind::of(rest);
                        // The older format has the suffix here, too.
                        if let (Kind::Counter, Some(stem)) =
                            (family.kind, name.strip_suffix("_total"))
                        {
                            family.name = stem.to_string();
                        }
                    }
                    // Elsewhere it loses the page.
                    _ if name.ends_with(&format!("_{rest}")) => {
                        family.unit = Some(rest.to_string())
                    }
                    _ => {}
                }
            }
        } else if let Some(sample) = Sample::parse(line)
            && let Some(line) = sample.of_layer(layer)
            && let Some(family) = families.iter_mut().rfind(|family| family.has(sample.name))
        {
            family.samples.push(line);
        }
    }
    families
}

/// A line with a figure.
#[derive(Debug, PartialEq, Eq)]
struct Sample<'a> {
    name: &'a str,
    /// Between the braces.
    labels: &'a str,
    /// The figure, and the time if there is one.
    figure: &'a str,
    /// What follows `#`: an example of what was counted.
    exemplar: Option<&'a str>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => {
                let end = end_of_labels(rest)?;
                (&rest[..end], &rest[end + 1..])
            }
            None => ("", rest),
        };
        let (figure, exemplar) = match rest.split_once(" # ") {
            Some((figure, exemplar)) => (figure.trim(), Some(exemplar)),
            None => (rest.trim(), None),
        };
        let is_number = |word: &str| word.parse::<f64>().is_ok();
        let has_figure = !figure.is_empty() && figure.split(' ').all(is_number);
        (is_name(name) && has_figure).then_some(Sample {
            name,
            labels,
            figure,
            exemplar,
        })
    }

    /// The line with the label of its layer; `None` where it has a label of that name.
    fn of_layer(&self, layer: &str) -> Option<String> {
        let Sample { name, labels, .. } = self;
        if labels.starts_with("layer=") || labels.contains(",layer=") {
            return None;
        }
        let mut line = format!("{name}{{layer=\"");
        for character in layer.chars() {
            match character {
                '\\' => line.push_str("\\\\"),
                '"' => line.push_str("\\\""),
                '\n' => line.push_str("\\n"),
                other => line.push(other),
            }
        }
        line.push('"');
        if !labels.is_empty() {
            line.extend([",", labels.trim_end_matches(',')]);
        }
        line.extend(["} ", self.figure]);
        if let Some(exemplar) = self.exemplar {
            line.extend([" # ", exemplar]);
        }
        Some(line)
    }
}

/// Where the brace is that ends the labels: one within a value ends nothing.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The name of a family or of a sample.
fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    let may_begin = |character: char| character.is_ascii_alphabetic() || "_:".contains(character);
    characters.next().is_some_and(may_begin)
        && characters.all(|character| may_begin(character) || character.is_ascii_digit())
}

/// A page in the older format. There a count has one name in all lines, no line has the unit or an
/// example, and none marks the end.
pub(crate) fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.split_terminator('\n') {
        let said = line
            .strip_prefix("# ")
            .and_then(|said| said.split_once(' ').or(Some((said, ""))));
        match said {
            Some(("EOF" | "UNIT", _)) => {}
            Some(("HELP", rest)) => help = Some(rest),
            Some(("TYPE", rest)) => {
                if let Some((name, kind)) = rest.rsplit_once(' ') {
                    let (kind, suffix) = Kind::of(kind).older();
                    let help = help.take().and_then(|help| help.strip_prefix(name));
                    if let Some(help) = help.and_then(|help| help.strip_prefix(' ')) {
                        text.extend(["# HELP ", name, suffix, " ", help, "\n"]);
                    }
                    text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
                }
            }
            _ => {
                // A name of a group may have these signs, too; the sample says where it ends.
                let without = (line.contains(" # "))
                    .then(|| Sample::parse(line)?.exemplar)
                    .flatten();
                let end = without.map_or(line.len(), |exemplar| line.len() - exemplar.len() - 3);
                text.extend([&line[..end], "\n"]);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_text() {
        let openmetrics = "# HELP a_bytes Some text.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes{x=\"# EOF\"} 1\n\
            a_bytes{x=\" # {y}\"} 1\n# HELP b Other text.\n# TYPE b counter\nb_total 2 # {id=\"7\"} 1\n\
            # TYPE c info\nc_info{v=\"1\"} 1\n# TYPE d unknown\nd 1\n# EOF\n";
        let expected = "# HELP a_bytes Some text.\n# TYPE a_bytes gauge\na_bytes{x=\"# EOF\"} 1\n\
            a_bytes{x=\" # {y}\"} 1\n# HELP b_total Other text.\n# TYPE b_total counter\nb_total 2\n\
            # TYPE c_info gauge\nc_info{v=\"1\"} 1\n# TYPE d untyped\nd 1\n";
        assert_eq!(plain(openmetrics), expected);
    }

    #[test]
    fn layers_by_family() {
        let text = |figure: u64| {
            format!(
                "# TYPE a counter\na_total{{k=\"x}}\"}} {figure}\n# TYPE b gauge\nb {figure}\n# EOF\n"
            )
        };
        let layers = [Layer::new("one", text(1)), Layer::new("t\"wo", text(2))];
        let expected = "# TYPE a counter\na_total{layer=\"one\",k=\"x}\"} 1\na_total{layer=\"t\\\"wo\",k=\"x}\"} 2\n\
            # TYPE b gauge\nb{layer=\"one\"} 1\nb{layer=\"t\\\"wo\"} 2\n";
        assert_eq!(beside("", &layers), expected);
        assert_eq!(
            beside("# TYPE a counter\n# TYPE b_total gauge\n", &layers),
            "# TYPE b gauge\nb{layer=\"one\"} 1\nb{layer=\"t\\\"wo\"} 2\n",
            "the tree has the first already"
        );
        assert_eq!(
            beside("# TYPE a_total gauge\n# TYPE b counter\n", &layers),
            "",
            "names of samples"
        );
    }

    #[test]
    fn a_layer_of_the_older_text() {
        let text =
            "# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n# TYPE b untyped\nb 2\n";
        assert_eq!(
            beside("", &[Layer::new("x", text)]),
            "# HELP a Some.\n# TYPE a counter\na_total{layer=\"x\"} 1\n# TYPE b unknown\nb{layer=\"x\"} 2\n"
        );
    }

    /// What would lose the page is left out.
    #[test]
    fn a_layer_of_any_text() {
        struct Panics;
        impl fmt::Display for Panics {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("a layer that panics")
            }
        }
        let layers = [
            Layer::new("panics", Panics),
            Layer::new(
                "odd",
                "a_total 1\n# TYPE a counter\na 1\na_total\na_total x\na_total{x=\"} 1\na_total{layer=\"x\"} 1\n\
                 a_totals 1\n# TYPE 1a gauge\n1a 1\n# TYPE\n# UNIT a bytes\n#\n\n# HELP a Help\na_total{} 7 8.5 # {} 1",
            ),
            Layer::new("other", "# TYPE a gauge\na 1\n"),
        ];
        let expected = "# HELP a Help\n# TYPE a counter\na_total{layer=\"odd\"} 7 8.5 # {} 1\n";
        assert_eq!(beside("", &layers), expected);
    }
}
