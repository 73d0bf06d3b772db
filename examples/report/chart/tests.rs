//! The elements of a picture.

use svg::node::element::tag::Type;
use svg::parser::Event;

use super::{Axis, Chart, Series, Size, Unit};

/// Each element that begins ends, in its order; returns the names of all.
fn elements(text: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for event in svg::read(text).unwrap() {
        match event {
            Event::Tag(name, Type::Start, _) => {
                open.push(name.to_owned());
                all.push(name.to_owned());
            }
            Event::Tag(name, Type::Empty, _) => all.push(name.to_owned()),
            Event::Tag(name, Type::End, _) => assert_eq!(open.pop().as_deref(), Some(name), "{text}"),
            Event::Error(error) => panic!("{error}: {text}"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} do not end: {text}");
    all
}

fn count(text: &str, name: &str) -> usize {
    elements(text).iter().filter(|element| *element == name).count()
}

#[test]
fn a_stack_reaches_its_sum() {
    let chart = Chart::new("Usage")
        .x(Axis::new("time").unit(Unit::Seconds))
        .y(Axis::new("bytes").unit(Unit::Bytes))
        .stack(&[0.0, 1.0, 2.0], [("a", vec![1024.0, 2048.0, 4096.0]), ("b", vec![1024.0, 2048.0])])
        .rule("limit", 8192.0);
    let text = chart.svg(Size::WIDE);
    let areas: Vec<&str> = text.split("<path").skip(1).filter(|path| path.contains("<title>")).collect();
    assert_eq!(areas.len(), 2);
    // The second layer ends where the first does, for it has no third value; the rule is at twice that height.
    assert!(areas[0].contains("<title>b") || areas[0].contains("b\n</title>"), "{}", areas[0]);
    let last = |area: &str| area.split('L').rev().nth(1).unwrap().split(' ').nth(1).unwrap().parse::<f64>().unwrap();
    assert_eq!(last(areas[0]), last(areas[1]));
    for tick in ["0 B", "4 KiB", "8 KiB", "2 s", "limit"] {
        assert!(text.contains(tick), "no {tick}: {text}");
    }
}

#[test]
fn a_logarithmic_axis_has_a_place_for_zero() {
    let points = Series::points("p").at(0.0, 1.0).at(1.0, 10.0).at(100.0, 1000.0).at(f64::NAN, 1.0);
    let text = Chart::new("t").x(Axis::new("x").log()).y(Axis::new("y").log()).with(points).svg(Size::HALF);
    assert_eq!(count(&text, "path"), 3, "a figure that is no number is left out");
    for tick in [">0<", ">1<", ">10<", ">100<", ">1,000<"] {
        assert!(text.contains(tick), "no {tick}: {text}");
    }
}

#[test]
fn what_a_chart_is_told_is_text_in_it() {
    let words = "a < b & \"c\" > 'd'";
    let chart = Chart::new(words).note(words).x(Axis::new(words).categories([words, "two"]));
    let chart = chart.y(Axis::new(words)).with(Series::bars(words, [1.0, 2.0])).with(Series::line(words));
    let text = chart.svg(Size::NARROW);
    assert_eq!(count(&text, "svg"), 1);
    assert!(text.contains("a &lt; b &amp;") && !text.contains("a < b"), "{text}");
}

#[test]
fn a_chart_without_figures_is_a_chart() {
    for chart in [Chart::new(""), Chart::new("t").x(Axis::default().log()).y(Axis::default().log())] {
        elements(&chart.clone().svg(Size::WIDE));
        elements(&chart.with(Series::points("p").at(0.0, 0.0)).svg(Size { width: 1.0, height: 1.0 }));
    }
}

#[test]
fn every_figure_is_within_the_picture() {
    let line = (0..500).fold(Series::line("l"), |line, at| line.at(f64::from(at), f64::from(at * at % 977) - 300.0));
    let text = Chart::new("t").with(line).with(Series::bars("b", [5.0])).svg(Size::NARROW);
    let places = text.split(&['M', 'L', '"'][..]).filter_map(|part| {
        let (x, y) = part.split_once(' ')?;
        Some((x.parse::<f64>().ok()?, y.parse::<f64>().ok()?))
    });
    let places: Vec<_> = places.collect();
    assert!(places.len() >= 500, "{}", places.len());
    assert!(places.iter().all(|&(x, y)| (0.0..=368.0).contains(&x) && (0.0..=340.0).contains(&y)), "{places:?}");
}

#[test]
fn figures_are_written_with_their_unit() {
    let cases = [
        (Unit::Count, 1500.0, "1,500"),
        (Unit::Count, 20_000.0, "20k"),
        (Unit::Count, 0.25, "0.25"),
        (Unit::Bytes, 0.0, "0 B"),
        (Unit::Bytes, 1_572_864.0, "1.5 MiB"),
        (Unit::Percent, 99.95, "100 %"),
        (Unit::Percent, 12.5, "12.5 %"),
        (Unit::Nanos, 1_234_567.0, "1.23 ms"),
        (Unit::Seconds, 3.0, "3 s"),
    ];
    for (unit, value, text) in cases {
        assert_eq!(unit.format(value), text);
    }
}
