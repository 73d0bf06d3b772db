//! The look of the output to a person: widths, colours, pages; programs see nothing else.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{Folder, number, program, refusal, run};

/// A short run of the clusters.
const SHORT: [&str; 4] = ["--budget", "4MiB", "--requests", "20000"];

fn text(more: &[&str]) -> String {
    let output = run(&[&SHORT[..], more].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for columns in [80, 120] {
        let width = columns.to_string();
        for more in [&["--all"][..], &["--details"], &["--live", "0.01"]] {
            let text = text(&[more, &["--width", &width]].concat());
            let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > columns).collect();
            assert!(wide.is_empty(), "wider than {columns}: {wide:#?}");
        }
    }
    let asked = Command::new(program()).args(SHORT).env("COLUMNS", "60").output().expect("the example starts");
    assert!(String::from_utf8_lossy(&asked.stdout).lines().all(|line| line.chars().count() <= 60));
    let help = text(&["--help"]);
    assert!(help.lines().all(|line| line.chars().count() <= 80) && help.contains("Examples:"), "{help}");
}

#[test]
fn verdict_is_first_and_ten_tenants_follow() {
    let tenants = |text: &str| text.lines().filter(|line| line.starts_with("cluster")).count();
    let short = text(&["--quiet"]);
    assert!(short.starts_with("ok: 54 groups held their limits ("), "{short}");
    assert_eq!(tenants(&short), 10);
    assert!(short.contains("and 43 tenants that hold less (--all)"), "{short}");
    assert_eq!(tenants(&text(&["--quiet", "--all"])), 53);
    assert!(!short.contains("drains") && text(&["--details"]).contains("drains"));
}

#[test]
fn narrow_terminals_have_fewer_columns() {
    let heads = |width| {
        let text = text(&["--quiet", "--width", width]);
        text.lines().find(|line| line.starts_with("tenant ")).expect("a head").to_owned()
    };
    assert!(heads("160").contains("too large"));
    assert!(heads("80").contains("refused") && !heads("80").contains("too large"));
    assert!(!heads("50").contains("evicted") && heads("50").contains("state"));
}

#[test]
fn programs_find_nothing_but_the_report() {
    let csv = text(&["--format", "csv"]);
    let mut lines = csv.lines();
    let heads = lines.next().expect("a head line");
    assert!(heads.starts_with("tenant,requests,gets,hits,hit_ratio,live_bytes,"), "{heads}");
    let columns = heads.split(',').count();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 53);
    for row in &rows {
        assert!(row.len() == columns && row[0].starts_with("cluster"), "{row:?}");
        assert!(row[1..].iter().all(|figure| figure.parse::<f64>().is_ok()), "{row:?}");
    }
    assert_eq!(rows.iter().map(|row| row[1].parse::<u64>().expect("requests")).sum::<u64>(), 20_000);
    let json: Value = serde_json::from_str(&text(&["--format", "json"])).expect("JSON");
    assert_eq!(number(&json["requests"]), 20_000);
}

/// A terminal of its own, where the system has the program `script`.
#[cfg(target_os = "linux")]
#[test]
fn colours_are_for_terminals_that_want_them() {
    let on_terminal = |variable: &str| {
        let command = format!("{variable} TERM=xterm {} --quiet {}", program().display(), SHORT.join(" "));
        Command::new("script").args(["-qec", &command, "/dev/null"]).output()
    };
    let (Ok(coloured), Ok(plain)) = (on_terminal("A=1"), on_terminal("NO_COLOR=1")) else {
        println!("no program `script`: skipped");
        return;
    };
    let escapes = |bytes: &[u8]| bytes.contains(&0x1b);
    assert!(escapes(&coloured.stdout), "{}", String::from_utf8_lossy(&coloured.stdout));
    assert!(!escapes(&plain.stdout), "{}", String::from_utf8_lossy(&plain.stdout));
    assert!(!text(&[]).contains('\u{1b}'), "a pipe has none");
}

/// Each element that begins ends, in its order: what XML asks for.
fn check_elements(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1).map(|rest| rest.split('>').next().expect("an end")) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.starts_with('!') || tag.ends_with('/') => {}
            None => open.push(tag.split([' ', '\n']).next().unwrap_or(tag)),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Writes both files of a run, and returns them.
fn files(args: &[&str]) -> [String; 2] {
    let folder = Folder::new("pages");
    let paths = ["page.html", "picture.svg"].map(|name| folder.0.join(name));
    let [page, picture] = paths.each_ref().map(|path| path.to_str().expect("a name"));
    let output = run(&[args, &["--html", page, "--svg", picture]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    paths.each_ref().map(|path| fs::read_to_string(path).expect("a file"))
}

#[test]
fn page_and_picture_stand_alone() {
    let job: &[&str] = &["--budget", "4MiB", "--seconds", "0.5", "--noisy", "1"];
    let compared: &[&str] = &["--compare", "--budget", "1MiB", "--batch", "1K", "--requests", "6000"];
    for (args, words) in [
        (job, ["54 tenants under one limit of 4 MiB", "Hit ratio over time"]),
        (compared, ["Hit ratio by policy", "what one tenant alone can use"]),
    ] {
        let [html, svg] = files(args);
        for text in [&html, &svg] {
            check_elements(text);
            for outside in ["src=", "href=", "url(", "@import", "<script"] {
                assert!(!text.contains(outside), "{outside}");
            }
        }
        assert_eq!(html.matches("<svg").count(), 4, "two charts, each for two widths");
        assert!(words.iter().all(|words| html.contains(words)), "{html}");
        assert!(svg.contains(words[0]) && svg.len() < 60_000, "{} bytes", svg.len());
    }
}

#[test]
fn a_page_that_cannot_be_written_is_named_before_the_run() {
    let folder = Folder::new("nowhere");
    let path = folder.0.join("none").join("page.html");
    let message = refusal(&["--html", path.to_str().expect("a name")], &[]);
    assert!(message.starts_with(&format!("{}: cannot write it: ", path.display())), "{message}");
    assert!(message.ends_with("name a file in a folder that exists and may be written"), "{message}");
}
