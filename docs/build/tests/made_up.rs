//! Each fault that a book can have, in a made-up repository, and a book that has none.

use std::fs;
use std::path::{Path, PathBuf};

use memcg_book_build::{Outcome, build};

/// A repository whose book has the page `page.md` beside a chapter that the page may link.
fn repository(name: &str, page: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    let files = [
        (
            "docs/book.toml",
            "[book]\ntitle = \"a\"\n\n[build]\nbuild-dir = \"../target/book\"\ncreate-missing = false\n",
        ),
        (
            "docs/src/SUMMARY.md",
            "# Summary\n\n- [Page](page.md)\n- [Other](series/other.md)\n",
        ),
        ("docs/src/page.md", page),
        (
            "docs/src/series/other.md",
            "# Other\n\n## Its part\n\n[a](../page.md#here), [b](../../../src/README.md)\n",
        ),
        ("docs/src/curve.svg", "<svg/>"),
        ("src/README.md", "# Inside\n\n## The states of it\n"),
        (
            "src/a.rs",
            "// ANCHOR: body\nfn a() {}\n// ANCHOR_END: body\n",
        ),
        ("target/doc/memcg/index.html", "<h1 id=\"top\">memcg</h1>"),
    ];
    for (file, text) in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))
            .expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
    }
    root
}

fn outcome(name: &str, page: &str) -> Outcome {
    build(
        &repository(name, &format!("# Page\n\n## Here\n\n{page}\n")),
        "docs",
        None,
    )
    .expect("the book is built")
}

#[test]
fn a_book_without_faults() {
    let page = "[a](series/other.md#its-part), [b](#here), ![c](curve.svg), [d](../../src/a.rs), \
                [e](../../src/README.md#the-states-of-it), [f](../../src), [g](https://docs.rs/memcg/latest/memcg/#top), \
                [h](https://example.org/)\n\n<!-- a word of its own -->\n<!-- src/a.rs:body -->\n```rust\nfn a() {}\n```";
    let outcome = outcome("faultless", page);
    assert_eq!(outcome.faults, Vec::<String>::new());
    assert!(
        outcome
            .summary
            .contains("2 chapters, 10 links and pictures hold; 1 to other sites"),
        "{}",
        outcome.summary
    );
}

#[test]
fn each_fault_is_found_with_its_line() {
    let cases = [
        ("[a](none.md)", "docs/src/page.md:5: no chapter none.md"),
        (
            "[a](SUMMARY.md)",
            "docs/src/page.md:5: no chapter SUMMARY.md",
        ),
        (
            "\n[a](series/other.md#part)",
            "docs/src/page.md:6: no anchor `part` in series/other.md: it has ",
        ),
        (
            "[a](#there)",
            "docs/src/page.md:5: no anchor `there` in page.md",
        ),
        (
            "![a](none.svg)",
            "docs/src/page.md:5: no file none.svg in docs/src: add it",
        ),
        (
            "[a](../../src/none.rs)",
            "docs/src/page.md:5: no file src/none.rs in the repository",
        ),
        (
            "[a](../../src/README.md#none)",
            "docs/src/page.md:5: no heading `none` in src/README.md",
        ),
        (
            "[a](../../src/a.rs#L1)",
            "docs/src/page.md:5: no heading `L1` in src/a.rs",
        ),
        (
            "[a](crate::Group)",
            "docs/src/page.md:5: `crate::Group` is a path of Rust",
        ),
        (
            "[a](../../../none)",
            "docs/src/page.md:5: `../../../none` leads out of the repository",
        ),
        (
            "[a](https://docs.rs/memcg/latest/memcg/none.html)",
            "docs/src/page.md:5: the documentation has no page",
        ),
        (
            "[a](https://docs.rs/memcg/latest/memcg/#none)",
            "docs/src/page.md:5: the documentation's page memcg/ has no",
        ),
        (
            "```rust\n{{#include ../../src/a.rs:body}}\n```",
            "docs/src/page.md:6: a directive of mdBook",
        ),
        (
            "<!-- src/a.rs:none -->\n```\n```",
            "docs/src/page.md:5: src/a.rs has no anchor `none`",
        ),
        (
            "<!-- src/b.rs -->\n```\nb\n```",
            "docs/src/page.md:5: src/b.rs: ",
        ),
        (
            "<!-- src/a.rs:body -->\n\nfn a() {}",
            "docs/src/page.md:5: no block of code stands below `src/a.rs:body`",
        ),
        (
            "<!-- src/a.rs:body -->\n```\nfn b() {}\n```",
            "docs/src/page.md:5: `src/a.rs:body` has `fn a() {}`, this page `fn b() {}`: copy it again",
        ),
        (
            "<!-- src/a.rs:body -->\n```\nfn a() {}\nfn b() {}\n```",
            "docs/src/page.md:5: `src/a.rs:body` has its end, this page `fn b() {}`: copy it again",
        ),
    ];
    for (number, (page, fault)) in cases.into_iter().enumerate() {
        let found = outcome(&format!("fault{number}"), page).faults;
        assert!(
            found.len() == 1 && found[0].starts_with(fault),
            "{page}: {found:?}"
        );
    }
}

#[test]
fn a_chapter_that_the_summary_leaves_out_is_found() {
    let root = repository("left_out", "# Page\n\n## Here\n");
    fs::write(root.join("docs/src/series/more.md"), "# More\n").expect("a file can be written");
    let found = build(&root, "docs", None)
        .expect("the book is built")
        .faults;
    assert_eq!(
        found,
        ["docs/src/series/more.md: not in docs/src/SUMMARY.md: add it there"]
    );
}

#[test]
fn a_chapter_that_the_summary_names_is_there() {
    let root = repository("missing", "# Page\n\n## Here\n");
    fs::remove_file(root.join("docs/src/series/other.md")).expect("a file can be removed");
    let error = build(&root, "docs", None).expect_err("a chapter is missing");
    assert!(format!("{error:#}").contains("other.md"), "{error:#}");
}

#[test]
fn links_that_leave_the_book_lead_to_the_checkout_or_to_the_url() {
    let page = "# Page\n\n## Here\n\n[a](../../src/README.md#the-states-of-it)\n";
    let root = repository("outside", page);
    let built = |page: &str| {
        fs::read_to_string(root.join("target/book").join(page)).expect("the page is built")
    };
    build(&root, "docs", None).expect("the book is built");
    for page in ["page.html", "index.html"] {
        assert!(built(page).contains("href=\"../../src/README.md#the-states-of-it\""));
    }
    assert!(built("series/other.html").contains("href=\"../../../src/README.md\""));
    build(&root, "docs", Some("https://example.org/memcg/blob/main")).expect("the book is built");
    assert!(
        built("series/other.html")
            .contains("href=\"https://example.org/memcg/blob/main/src/README.md\"")
    );
}
