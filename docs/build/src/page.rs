//! One built page: its anchors, its links and pictures.

use std::cell::RefCell;
use std::collections::BTreeSet;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};

/// What a page has.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) anchors: BTreeSet<String>,
    /// What its links and pictures say, each once; as built, where a chapter is `.html`.
    pub(crate) links: BTreeSet<String>,
}

/// Gathers a page while its text is read.
#[derive(Default)]
struct Reader(RefCell<State>);

#[derive(Default)]
struct State {
    page: Page,
    /// Inside `main`: what lies around it is mdBook's own.
    in_main: bool,
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
        let attribute = |name: &str| {
            tag.attrs
                .iter()
                .find(|of| &*of.name.local == name)
                .map(|of| of.value.to_string())
        };
        self.page.anchors.extend(attribute("id"));
        match &*tag.name {
            "main" => self.in_main = true,
            // A heading's link to itself.
            "a" if attribute("class").is_some_and(|class| class == "header") => {}
            "a" if self.in_main => self.page.links.extend(attribute("href")),
            "img" | "object" | "source" if self.in_main => {
                self.page
                    .links
                    .extend(attribute("src").or_else(|| attribute("data")));
            }
            _ => {}
        }
    }
}

impl TokenSink for Reader {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut state = self.0.borrow_mut();
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => state.start(&tag),
            Token::TagToken(tag) if &*tag.name == "main" => state.in_main = false,
            _ => {}
        }
        TokenSinkResult::Continue
    }
}
