//! One built page: its anchors, its links and pictures, and what mdBook passed over without a word.

use std::cell::RefCell;
use std::collections::BTreeSet;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

/// What a page has.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) anchors: BTreeSet<String>,
    /// What its links and pictures say, each once; as built, where a chapter is `.html`.
    pub(crate) links: BTreeSet<String>,
    pub(crate) faults: Vec<String>,
}

/// Gathers a page while its text is read.
#[derive(Default)]
struct Reader(RefCell<State>);

#[derive(Default)]
struct State {
    page: Page,
    /// Inside `main`: what lies around it is mdBook's own.
    in_main: bool,
    /// The text of the block of code that is being read.
    block: Option<String>,
    /// Inside a line that mdBook hides: it puts `fn main` around code that has none.
    in_hidden: bool,
}

impl Page {
    pub(crate) fn read(html: &str) -> Page {
        let input = BufferQueue::default();
        input.push_back(StrTendril::from(html));
        let tokenizer = Tokenizer::new(Reader::default(), TokenizerOpts::default());
        let _ = tokenizer.feed(&input);
        tokenizer.end();
        tokenizer.sink.0.into_inner().page
    }
}

impl State {
    fn start(&mut self, tag: &Tag) {
        let attribute = |name: &str| tag.attrs.iter().find(|of| &*of.name.local == name).map(|of| of.value.to_string());
        self.page.anchors.extend(attribute("id"));
        match &*tag.name {
            "main" => self.in_main = true,
            // A heading's link to itself.
            "a" if attribute("class").is_some_and(|class| class == "header") => {}
            "a" if self.in_main => self.page.links.extend(attribute("href")),
            "img" | "object" | "source" if self.in_main => {
                self.page.links.extend(attribute("src").or_else(|| attribute("data")));
            }
            "pre" => self.block = Some(String::new()),
            "span" => self.in_hidden = attribute("class").is_some_and(|class| class == "boring"),
            _ => {}
        }
    }

    fn end(&mut self, tag: &Tag) {
        match &*tag.name {
            "main" => self.in_main = false,
            "span" => self.in_hidden = false,
            "pre" => {
                let block = self.block.take().unwrap_or_default();
                if block.trim().is_empty() {
                    let fault = "a block of code is empty: its {{#include FILE:ANCHOR}} names no ANCHOR of FILE";
                    self.page.faults.push(fault.to_owned());
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(block) = &mut self.block
            && !self.in_hidden
        {
            block.push_str(text);
        }
        if self.in_main
            && let Some((_, rest)) = text.split_once("{{#")
        {
            let directive = rest.split("}}").next().unwrap_or(rest);
            self.page.faults.push(format!("{{{{#{directive}}}}} is left as it was: its file cannot be read"));
        }
    }
}

impl TokenSink for Reader {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut state = self.0.borrow_mut();
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => state.start(&tag),
            Token::TagToken(tag) => state.end(&tag),
            Token::CharacterTokens(text) => state.text(&text),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}
