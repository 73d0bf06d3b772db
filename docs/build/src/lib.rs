//! Builds the book with mdBook and checks what came out: each link, anchor and picture, each
//! chapter, the code that pages show of programs.

mod page;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;
use mdbook_driver::errors::{Error, Result};

use page::Page;

/// Where the documentation of the published crate stands; a link there is looked up in what
/// `cargo doc` built.
const DOCS_RS: &str = "https://docs.rs/memcg/latest/";

/// What a build found.
#[derive(Debug)]
pub struct Outcome {
    /// One line for each fault: the file, the line in it, what is wrong and the remedy.
    pub faults: Vec<String>,
    /// What was checked, and what was not.
    pub summary: String,
}

/// A book in the folder `book` of a repository.
struct Book {
    /// The repository, without links in its path.
    root: PathBuf,
    /// The chapters' folder, from the repository: `docs/src`.
    source: PathBuf,
    /// The built pages' folder.
    built: PathBuf,
    /// Each chapter's page as it was built, by its path below the folder: `series/hahn.html`.
    pages: BTreeMap<PathBuf, (PathBuf, Page)>,
    /// The first of them.
    first: PathBuf,
    /// What `cargo doc` built, where it has.
    documentation: Option<PathBuf>,
}

/// Where a link leads.
enum Place {
    /// A page or file of the book, by its path below the built folder.
    Book(PathBuf),
    /// A file of the repository, by its path below the repository.
    Repository(PathBuf),
    /// Out of the repository.
    Nowhere,
}

/// What became of a link.
enum Verdict {
    Holds,
    /// It leads to this file of the repository, at this anchor, and the built page has to say so.
    Outside(PathBuf, String),
    /// It leads to another site, which this program does not ask.
    NotChecked,
    Dead(String),
}

/// Builds the book in the folder `book` of the repository `root`. What its pages link outside of
/// the book lies below `url`, or in this checkout.
pub fn build(root: &Path, book: &str, url: Option<&str>) -> Result<Outcome> {
    let root = root.canonicalize()?;
    let driver = MDBook::load(root.join(book))?;
    driver.build()?;
    let chapters: Vec<PathBuf> = driver.iter().filter_map(chapter).collect();
    let book = Book::read(&root, &driver, &chapters)?;
    let mut faults = book.not_in_summary(&chapters)?;
    let mut checked = 0;
    let mut not_checked = 0;
    for (path, (source, page)) in &book.pages {
        let name = book.source.join(source);
        let text = fs::read_to_string(root.join(&name))?;
        let mut outside = Vec::new();
        let shown = shown::faults(&root, &text).into_iter();
        faults.extend(shown.map(|(line, fault)| format!("{}:{line}: {fault}", name.display())));
        for link in &page.links {
            checked += 1;
            match book.check(path, link) {
                Verdict::Holds => {}
                Verdict::NotChecked => not_checked += 1,
                Verdict::Outside(file, anchor) => outside.push((link.as_str(), file, anchor)),
                Verdict::Dead(why) => faults.push(format!(
                    "{}:{}: {why}",
                    name.display(),
                    line_of(&text, link)
                )),
            }
        }
        book.write_outside(path, &outside, url)?;
    }
    let pages = book.pages.len();
    let documentation = if book.documentation.is_some() {
        ""
    } else {
        ", nor docs.rs/memcg (no target/doc here)"
    };
    let place = book.built.display();
    let summary = format!(
        "{place}: {pages} chapters, {checked} links and pictures hold; {not_checked} to other sites are not looked \
         up{documentation}"
    );
    Ok(Outcome { faults, summary })
}

fn chapter(item: &BookItem) -> Option<PathBuf> {
    let BookItem::Chapter(chapter) = item else {
        return None;
    };
    chapter.source_path.clone()
}

/// The page that mdBook makes of a chapter.
fn built_name(chapter: &Path) -> PathBuf {
    let is_readme = chapter
        .file_stem()
        .is_some_and(|stem| stem.eq_ignore_ascii_case("readme"));
    if is_readme {
        chapter.with_file_name("index.html")
    } else {
        chapter.with_extension("html")
    }
}

/// The line of a chapter on which a link stands; 1 where it cannot be told.
fn line_of(text: &str, link: &str) -> usize {
    let (path, _) = link.split_once('#').unwrap_or((link, ""));
    let written = path
        .strip_suffix(".html")
        .map_or(link.to_owned(), |stem| format!("{stem}.md"));
    let holds =
        |line: &str| line.contains(&format!("({link}")) || line.contains(&format!("({written}"));
    text.lines()
        .position(|line| holds(line) || line.contains(link))
        .map_or(1, |line| line + 1)
}

/// The path without `.` and `..`; `None` where it leads above its start.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir if !normal.pop() => return None,
            _ => {}
        }
    }
    Some(normal)
}

/// The anchors that a page of the repository gets from its headings on the web.
fn heading_anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_');
        heading
            .trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

impl Book {
    fn read(root: &Path, driver: &MDBook, chapters: &[PathBuf]) -> Result<Book> {
        let built = driver.build_dir_for("html").canonicalize()?;
        let mut pages = BTreeMap::new();
        for chapter in chapters {
            let name = built_name(chapter);
            let html = fs::read_to_string(built.join(&name))?;
            pages.insert(name, (chapter.clone(), Page::read(&html)));
        }
        let source = driver
            .source_dir()
            .canonicalize()?
            .strip_prefix(root)
            .map_err(Error::msg)?
            .to_owned();
        let documentation =
            Some(root.join("target/doc")).filter(|doc| doc.join("memcg/index.html").exists());
        let first = chapters
            .first()
            .map(|chapter| built_name(chapter))
            .unwrap_or_default();
        Ok(Book {
            root: root.to_owned(),
            source,
            built,
            pages,
            first,
            documentation,
        })
    }

    /// The chapters that the summary leaves out.
    fn not_in_summary(&self, chapters: &[PathBuf]) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut folders = vec![self.root.join(&self.source)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let below = path
                    .strip_prefix(self.root.join(&self.source))
                    .map_err(Error::msg)?;
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|of| of == "md")
                    && below != Path::new("SUMMARY.md")
                    && !chapters.iter().any(|chapter| chapter == below)
                {
                    let file = self.source.join(below);
                    let summary = self.source.join("SUMMARY.md");
                    faults.push(format!(
                        "{}: not in {}: add it there",
                        file.display(),
                        summary.display()
                    ));
                }
            }
        }
        faults.sort();
        Ok(faults)
    }

    /// Where a link of the page leads, from what it says before `#`.
    fn place(&self, page: &Path, to: &str) -> Place {
        let folder = page.parent().unwrap_or(Path::new(""));
        let joined = folder.join(to);
        if let Some(in_book) = normal(&joined) {
            return Place::Book(in_book);
        }
        normal(&self.source.join(joined)).map_or(Place::Nowhere, Place::Repository)
    }

    fn check(&self, page: &Path, link: &str) -> Verdict {
        let (to, anchor) = link.split_once('#').unwrap_or((link, ""));
        if let Some(item) = to.strip_prefix(DOCS_RS) {
            return self.check_documentation(item, anchor);
        }
        if to.contains("::") {
            return Verdict::Dead(format!(
                "`{link}` is a path of Rust: link its page, as {DOCS_RS}memcg/struct.Group.html"
            ));
        }
        if to.contains(':') {
            return Verdict::NotChecked;
        }
        if to.is_empty() {
            return self.check_in_book(page, anchor);
        }
        match self.place(page, to) {
            Place::Book(path) => self.check_in_book(&path, anchor),
            Place::Repository(path) => self.check_outside(path, anchor),
            Place::Nowhere => Verdict::Dead(format!(
                "`{}` leads out of the repository: link what is in it",
                link
            )),
        }
    }

    fn check_in_book(&self, path: &Path, anchor: &str) -> Verdict {
        match self.pages.get(path) {
            Some((_, page)) if anchor.is_empty() || page.anchors.contains(anchor) => Verdict::Holds,
            Some((source, page)) => {
                let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
                let source = source.display();
                Verdict::Dead(format!(
                    "no anchor `{anchor}` in {source}: it has {}",
                    anchors.join(", ")
                ))
            }
            None if self.built.join(path).is_file() && anchor.is_empty() => Verdict::Holds,
            None if path.extension().is_some_and(|of| of == "html") => {
                let source = path.with_extension("md");
                let folder = self.source.display();
                Verdict::Dead(format!(
                    "no chapter {}: link one that {folder}/SUMMARY.md names",
                    source.display()
                ))
            }
            None => Verdict::Dead(format!(
                "no file {} in {}: add it",
                path.display(),
                self.source.display()
            )),
        }
    }

    /// A file of the repository outside of the book. mdBook has made `.html` of its `.md`.
    fn check_outside(&self, path: PathBuf, anchor: &str) -> Verdict {
        let is_renamed =
            path.extension().is_some_and(|of| of == "html") && !self.root.join(&path).exists();
        let path = if is_renamed {
            path.with_extension("md")
        } else {
            path
        };
        let file = path.display();
        if !self.root.join(&path).exists() {
            return Verdict::Dead(format!(
                "no file {file} in the repository: link one that is there"
            ));
        }
        let is_page = path.extension().is_some_and(|of| of == "md");
        if anchor.is_empty() {
            return Verdict::Outside(path, String::new());
        }
        let anchors = fs::read_to_string(self.root.join(&path))
            .map(|text| heading_anchors(&text))
            .unwrap_or_default();
        if is_page && anchors.contains(anchor) {
            Verdict::Outside(path, format!("#{anchor}"))
        } else {
            Verdict::Dead(format!(
                "no heading `{anchor}` in {file}: link a heading of a page, or the file"
            ))
        }
    }

    fn check_documentation(&self, item: &str, anchor: &str) -> Verdict {
        let Some(documentation) = &self.documentation else {
            return Verdict::NotChecked;
        };
        let file = if item.ends_with('/') {
            format!("{item}index.html")
        } else {
            item.to_owned()
        };
        let Ok(html) = fs::read_to_string(documentation.join(&file)) else {
            return Verdict::Dead(format!(
                "the documentation has no page {item}: link one of target/doc"
            ));
        };
        if anchor.is_empty() || Page::read(&html).anchors.contains(anchor) {
            Verdict::Holds
        } else {
            Verdict::Dead(format!("the documentation's page {item} has no `{anchor}`"))
        }
    }

    /// Has the built page link files outside of the book by where they are.
    fn write_outside(
        &self,
        page: &Path,
        links: &[(&str, PathBuf, String)],
        url: Option<&str>,
    ) -> Result<()> {
        if links.is_empty() {
            return Ok(());
        }
        let path = self.built.join(page);
        let up = path
            .parent()
            .into_iter()
            .flat_map(|folder| folder.strip_prefix(&self.root))
            .next();
        let up = up.map(|folder| "../".repeat(folder.components().count()));
        let base = match (url, up) {
            (Some(url), _) => format!("{url}/"),
            (None, Some(up)) => up,
            (None, None) => format!("file://{}/", self.root.display()),
        };
        // The first chapter is the book's front page, too.
        let front = Some(Path::new("index.html")).filter(|_| page == self.first);
        for page in [Some(page), front].into_iter().flatten() {
            let mut html = fs::read_to_string(self.built.join(page))?;
            for (link, file, anchor) in links {
                for name in ["href", "src"] {
                    let place = format!("{base}{}{anchor}", file.display());
                    html = html.replace(
                        &format!("{name}=\"{link}\""),
                        &format!("{name}=\"{place}\""),
                    );
                }
            }
            fs::write(self.built.join(page), html)?;
        }
        Ok(())
    }
}
