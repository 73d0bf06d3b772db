//! Which file calls a function of which other one, methods among them: an import names the file of
//! a type, and a method of that type may lie in another file.
//!
//! There is no compiler here, so the type of an expression is a set: all types of the crate that
//! its value may hold or lead to. `Option<(&Block, &Slot)>` is `{Block, Slot}`, and `unwrap`, `?`,
//! an index or a pattern takes none away. A call goes to each type of the set that has a method of
//! the name, in the file of that method. So an arrow too many is possible, where two types of a set
//! have methods of one name; a receiver of no known type makes none, unless the crate has one method
//! of the name, of several words.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::names::{Crate, ModuleId, Piece, implemented};
use crate::reader::{Lines, is_name, split, tokens_at};

/// A function of one file that calls one of another.
pub(crate) struct Call {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) line: usize,
    /// Name of the function that is called.
    pub(crate) name: String,
}

/// Index of a type in [`Types`].
type TypeId = usize;
type Set = BTreeSet<TypeId>;
/// Items by the file that defines them and the name there.
type Items = BTreeSet<(usize, String)>;

#[derive(Clone)]
struct Function {
    source: usize,
    returns: Set,
    /// The types of its signature: what a closure that is passed to it may be called with.
    takes: Set,
}

#[derive(Default)]
struct Type {
    fields: BTreeMap<String, Set>,
    /// What the variants of an enum hold.
    payload: Set,
    methods: BTreeMap<String, Vec<Function>>,
    /// What it dereferences to or iterates over, and what an alias stands for.
    leads_to: Set,
}

#[derive(Default)]
struct Types {
    ids: BTreeMap<(usize, String), TypeId>,
    all: Vec<Type>,
    /// Functions and constants outside of types.
    free: BTreeMap<(usize, String), Function>,
    /// The files that define a method, by its name.
    by_name: BTreeMap<String, BTreeSet<usize>>,
}

struct Text {
    tokens: Vec<(usize, String)>,
    lines: Lines,
}

/// A range of tokens of one text.
type Range = std::ops::Range<usize>;

/// A function's place: whose names it sees, and what `Self` is.
#[derive(Clone, Copy)]
struct Place {
    source: usize,
    module: ModuleId,
    own: Option<TypeId>,
}

struct Reader<'a> {
    of: &'a Crate<'a>,
    texts: BTreeMap<usize, Rc<Text>>,
    types: Types,
    found: RefCell<BTreeMap<(ModuleId, Vec<String>), Items>>,
}

const KEYWORDS: &[&str] = &[
    "as", "async", "await", "box", "break", "const", "continue", "dyn", "else", "extern", "false",
    "fn", "for", "if", "impl", "in", "let", "loop", "match", "move", "mut", "pub", "ref", "return",
    "static", "true", "unsafe", "use", "where", "while", "_",
];

impl Text {
    fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |(_, token)| token)
    }

    fn is(&self, at: usize, words: &[&str]) -> bool {
        (at..).zip(words).all(|(at, word)| self.word(at) == *word)
    }

    /// The place behind the bracket that closes the one at `at`.
    fn behind(&self, at: usize) -> usize {
        let mut depth = 0;
        for end in at..self.tokens.len() {
            match self.word(end) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return end + 1;
            }
        }
        self.tokens.len()
    }

    /// The place behind the generic arguments that begin at `at`.
    fn behind_generics(&self, at: usize) -> usize {
        let mut depth = 0;
        for end in at..self.tokens.len() {
            match self.word(end) {
                "<" => depth += 1,
                // The head of an arrow closes nothing.
                ">" if self.word(end - 1) != "-" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return end + 1;
            }
        }
        self.tokens.len()
    }

    /// The first place of `range` outside of brackets where `stops` holds, or its end.
    fn find(&self, range: Range, stops: impl Fn(usize) -> bool) -> usize {
        let mut at = range.start;
        while at < range.end {
            if stops(at) {
                return at;
            }
            at = match self.word(at) {
                "(" | "[" | "{" => self.behind(at),
                _ => at + 1,
            };
        }
        range.end
    }

    /// What commas outside of brackets and of generic arguments part.
    fn parts(&self, range: Range) -> Vec<Range> {
        let mut parts = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let (mut to, mut depth) = (from, 0);
            while to < range.end && (depth > 0 || self.word(to) != ",") {
                match self.word(to) {
                    "(" | "[" | "{" => to = self.behind(to) - 1,
                    "<" => depth += 1,
                    // The head of an arrow closes nothing.
                    ">" if self.word(to - 1) != "-" => depth -= 1,
                    _ => {}
                }
                to += 1;
            }
            parts.push(from..to);
            from = to + 1;
        }
        parts
    }

    /// True for the brace of a body, which ends a condition.
    fn opens(&self, at: usize) -> bool {
        self.word(at) == "{" && self.word(at - 1) != "unsafe"
    }

    /// True for a single `=`.
    fn assigns(&self, at: usize) -> bool {
        self.word(at) == "="
            && !matches!(self.word(at + 1), "=" | ">")
            && !matches!(self.word(at - 1), "=" | "<" | ">" | "!")
    }
}

/// The parts of a function, from its word `fn` on.
struct Signature {
    name: String,
    parameters: Range,
    /// From its name to its body.
    whole: Range,
    returns: Range,
    body: Range,
}

fn signature(text: &Text, at: usize) -> Signature {
    let name = text.word(at + 1).to_owned();
    let mut open = at + 2;
    if text.word(open) == "<" {
        open = text.behind_generics(open);
    }
    let close = text.behind(open);
    let end = text.find(close..text.tokens.len(), |at| {
        matches!(text.word(at), "{" | ";")
    });
    let where_or_end = text.find(close..end, |at| text.word(at) == "where");
    let returns = if text.is(close, &["-", ">"]) {
        close + 2..where_or_end
    } else {
        close..close
    };
    let body = if text.word(end) == "{" {
        end + 1..text.behind(end) - 1
    } else {
        end..end
    };
    Signature {
        name,
        parameters: open + 1..close.saturating_sub(1),
        whole: at + 2..end,
        returns,
        body,
    }
}

impl<'a> Reader<'a> {
    fn text(&mut self, source: usize) -> Rc<Text> {
        let of = self.of;
        Rc::clone(self.texts.entry(source).or_insert_with(|| {
            let (code, _) = split(of.sources[source].production());
            let tokens = tokens_at(&code);
            Rc::new(Text {
                tokens: tokens
                    .into_iter()
                    .map(|(at, token)| (at, token.to_owned()))
                    .collect(),
                lines: Lines::of(&code),
            })
        }))
    }

    fn items(&self, module: ModuleId, path: &[String]) -> Items {
        let key = (module, path.to_vec());
        if let Some(found) = self.found.borrow().get(&key) {
            return found.clone();
        }
        let items = self.of.find(module, path).items;
        self.found.borrow_mut().insert(key, items.clone());
        items
    }

    fn ids(&self, place: Place, path: &[String]) -> Set {
        if path[0] == "Self" {
            let own = place.own.into_iter();
            if path.len() > 1 {
                return own
                    .flat_map(|own| self.types.all[own].leads_to.clone())
                    .collect();
            }
            return own.collect();
        }
        let items = self.items(place.module, path);
        items
            .iter()
            .filter_map(|item| self.types.ids.get(item).copied())
            .collect()
    }

    /// The types that a range of tokens names.
    fn named(&self, text: &Text, range: Range, place: Place) -> Set {
        let mut set = Set::new();
        let mut at = range.start;
        while at < range.end {
            let word = text.word(at);
            if !is_name(word) || KEYWORDS.contains(&word) || text.word(at.wrapping_sub(1)) == "'" {
                at += 1;
                continue;
            }
            let mut path = vec![word.to_owned()];
            while text.word(at + 1) == "::" && is_name(text.word(at + 2)) {
                path.push(text.word(at + 2).to_owned());
                at += 2;
            }
            set.extend(self.ids(place, &path));
            at += 1;
        }
        set
    }

    /// The set and all that its types lead to.
    fn reach(&self, set: &Set) -> Set {
        let mut reached = set.clone();
        let mut queue: Vec<TypeId> = set.iter().copied().collect();
        while let Some(id) = queue.pop() {
            for &next in &self.types.all[id].leads_to {
                if reached.insert(next) {
                    queue.push(next);
                }
            }
        }
        reached
    }

    fn function(&self, text: &Text, signature: &Signature, place: Place) -> Function {
        Function {
            source: place.source,
            returns: self.named(text, signature.returns.clone(), place),
            takes: self.named(text, signature.whole.clone(), place),
        }
    }

    /// The fields of a struct, or what the variants of an enum hold.
    fn read_fields(&mut self, piece: &Piece, text: &Text, at: usize, id: TypeId) {
        let place = Place {
            source: piece.source,
            module: piece.module,
            own: Some(id),
        };
        let kind = text.word(at).to_owned();
        let mut open = at + 2;
        if text.word(open) == "<" {
            open = text.behind_generics(open);
        }
        open = text.find(open..text.tokens.len(), |at| {
            matches!(text.word(at), "{" | "(" | ";" | "=")
        });
        match (kind.as_str(), text.word(open)) {
            ("type", _) => {
                let end = text.find(open..text.tokens.len(), |at| text.word(at) == ";");
                self.types.all[id].leads_to = self.named(text, open..end, place);
            }
            ("enum", "{") => {
                self.types.all[id].payload = self.named(text, open..text.behind(open), place);
            }
            ("struct" | "union", "{" | "(") => {
                let parts = text.parts(open + 1..text.behind(open) - 1);
                for (number, part) in parts.into_iter().enumerate() {
                    let colon = text.find(part.clone(), |at| text.word(at) == ":");
                    let (name, of) = if colon < part.end {
                        (text.word(colon - 1).to_owned(), colon..part.end)
                    } else {
                        (number.to_string(), part)
                    };
                    let set = self.named(text, of, place);
                    self.types.all[id].fields.insert(name, set);
                }
            }
            _ => {}
        }
    }

    /// Calls `with` for each function of a block, from its brace on.
    fn functions(text: &Text, open: usize, mut with: impl FnMut(usize)) {
        let end = text.behind(open) - 1;
        let mut at = open + 1;
        while at < end {
            if text.word(at) == "fn" && is_name(text.word(at + 1)) {
                with(at);
                at = signature(text, at).body.end;
            }
            at = match text.word(at) {
                "(" | "[" | "{" => text.behind(at),
                _ => at + 1,
            };
        }
    }

    /// The block of an `impl` or a trait, and the type that its functions are methods of.
    fn block(&self, piece: &Piece, text: &Text, at: usize) -> Option<(usize, Place)> {
        let mut place = Place {
            source: piece.source,
            module: piece.module,
            own: None,
        };
        let open = text.find(at..text.tokens.len(), |at| {
            matches!(text.word(at), "{" | ";")
        });
        let path = if text.word(at) == "trait" {
            vec![text.word(at + 1).to_owned()]
        } else {
            let tokens: Vec<(usize, &str)> = text.tokens[at + 1..=open]
                .iter()
                .map(|(at, token)| (*at, token.as_str()))
                .collect();
            implemented(&tokens)
        };
        if path.is_empty() || text.word(open) != "{" {
            return None;
        }
        place.own = Some(*self.ids(place, &path).first()?);
        Some((open, place))
    }

    fn read_types(&mut self) {
        let of = self.of;
        for piece in &of.pieces {
            let text = self.text(piece.source);
            let at = text.tokens.partition_point(|(at, _)| *at < piece.at);
            if matches!(
                text.word(at),
                "struct" | "enum" | "union" | "trait" | "type"
            ) {
                let id = self.types.all.len();
                self.types.all.push(Type::default());
                let name = (piece.source, text.word(at + 1).to_owned());
                self.types.ids.insert(name, id);
            }
        }
        for piece in &of.pieces {
            let text = self.text(piece.source);
            let at = text.tokens.partition_point(|(at, _)| *at < piece.at);
            let place = Place {
                source: piece.source,
                module: piece.module,
                own: None,
            };
            let name = (piece.source, text.word(at + 1).to_owned());
            match text.word(at) {
                "fn" => {
                    let function = self.function(&text, &signature(&text, at), place);
                    self.types.free.insert(name, function);
                }
                "static" | "const" => {
                    let end = text.find(at..text.tokens.len(), |at| {
                        matches!(text.word(at), "=" | ";")
                    });
                    let returns = self.named(&text, at + 2..end, place);
                    let (source, takes) = (piece.source, Set::new());
                    let function = Function {
                        source,
                        returns,
                        takes,
                    };
                    self.types.free.insert(name, function);
                }
                "impl" => self.read_associated(piece, &text, at),
                "per_thread" => self.read_per_thread(&text, at, place),
                _ => {
                    let id = self.types.ids[&name];
                    self.read_fields(piece, &text, at, id);
                }
            }
        }
        for piece in &of.pieces {
            let text = self.text(piece.source);
            let at = text.tokens.partition_point(|(at, _)| *at < piece.at);
            if matches!(text.word(at), "impl" | "trait")
                && let Some((open, place)) = self.block(piece, &text, at)
            {
                let mut methods = Vec::new();
                Self::functions(&text, open, |at| methods.push(signature(&text, at)));
                let id = place.own.expect("a block is of a type");
                // A method of a trait has the name of many: it is found by the type alone.
                let inherent = text.word(at) == "impl"
                    && text.find(at..open, |at| text.word(at) == "for") == open;
                for method in methods {
                    let function = self.function(&text, &method, place);
                    if inherent {
                        let by_name = &mut self.types.by_name;
                        by_name
                            .entry(method.name.clone())
                            .or_default()
                            .insert(piece.source);
                    }
                    let of = &mut self.types.all[id].methods;
                    of.entry(method.name).or_default().push(function);
                }
            }
        }
    }

    /// The function that `per_thread!` makes, for a value of the thread.
    fn read_per_thread(&mut self, text: &Text, at: usize, place: Place) {
        let end = text.behind(at + 2) - 1;
        let colon = text.find(at + 3..end, |at| text.word(at) == ":");
        let assigned = text.find(colon..end, |at| text.word(at) == "=");
        let set = self.named(text, colon..assigned, place);
        let function = Function {
            source: place.source,
            returns: set.clone(),
            takes: set,
        };
        let name = text.word(colon - 1).to_owned();
        self.types.free.insert((place.source, name), function);
    }

    /// The types that an `impl` of a trait names: the target of `Deref`, the item of `Iterator`.
    fn read_associated(&mut self, piece: &Piece, text: &Text, at: usize) {
        let Some((open, place)) = self.block(piece, text, at) else {
            return;
        };
        let end = text.behind(open) - 1;
        let mut set = Set::new();
        let mut from = open + 1;
        while from < end {
            if text.word(from) == "type" {
                let to = text.find(from..end, |at| text.word(at) == ";");
                set.extend(self.named(text, from + 2..to, place));
                from = to;
            }
            from = match text.word(from) {
                "(" | "[" | "{" => text.behind(from),
                _ => from + 1,
            };
        }
        let id = place.own.expect("a block is of a type");
        set.remove(&id);
        self.types.all[id].leads_to.extend(set);
    }
}

/// Reads the body of one function.
struct Body<'r, 'a> {
    reader: &'r Reader<'a>,
    text: &'r Text,
    place: Place,
    /// What each variable may hold, whatever block it lives in.
    held: BTreeMap<String, Set>,
    calls: &'r mut Vec<Call>,
}

impl Body<'_, '_> {
    fn call(&mut self, at: usize, name: &str, to: usize) {
        let line = self.text.lines.number(self.text.tokens[at].0);
        self.calls.push(Call {
            from: self.place.source,
            to,
            line,
            name: name.to_owned(),
        });
    }

    /// Binds the names of a pattern to parts of what the set may hold.
    fn bind(&mut self, pattern: Range, set: &Set) {
        let types = &self.reader.types.all;
        let mut parts = set.clone();
        for &id in set {
            parts.extend(&types[id].payload);
        }
        let named = self.reader.named(self.text, pattern.clone(), self.place);
        let by_field = pattern.clone().any(|at| self.text.word(at) == "{");
        for at in pattern {
            let word = self.text.word(at);
            let is_variable = is_name(word)
                && word.starts_with(|first: char| first.is_lowercase() || first == '_')
                && !KEYWORDS.contains(&word)
                && !matches!(self.text.word(at + 1), "::" | "(" | "!")
                && self.text.word(at.wrapping_sub(1)) != "::";
            if !is_variable {
                continue;
            }
            let field: Set = named
                .iter()
                .chain(set)
                .filter_map(|&id| types[id].fields.get(word))
                .flatten()
                .copied()
                .collect();
            let of = if by_field && !field.is_empty() {
                &field
            } else {
                &parts
            };
            self.held.entry(word.to_owned()).or_default().extend(of);
        }
    }

    fn bind_parameters(&mut self, range: Range, otherwise: &Set) {
        let text = self.text;
        for part in text.parts(range) {
            let colon = text.find(part.clone(), |at| text.word(at) == ":");
            if colon < part.end {
                let set = self.reader.named(text, colon..part.end, self.place);
                self.bind(part.start..colon, &set);
            } else {
                self.bind(part, otherwise);
            }
        }
    }

    /// Reads expressions and statements, and returns all types that their values may have.
    /// `given` is what a closure among them may be called with.
    fn read(&mut self, range: Range, given: &Set) -> Set {
        let mut set = Set::new();
        let mut at = range.start;
        while at < range.end {
            let (found, next) = self.read_one(at, range.end, given);
            set.extend(found);
            at = next.max(at + 1);
        }
        set
    }

    fn read_one(&mut self, at: usize, end: usize, given: &Set) -> (Set, usize) {
        let text = self.text;
        let before = if at == 0 { "" } else { text.word(at - 1) };
        match text.word(at) {
            "let" => {
                let conditional = matches!(before, "if" | "while" | "&");
                let assigned =
                    text.find(at + 1..end, |at| text.assigns(at) || text.word(at) == ";");
                let colon = text.find(at + 1..assigned, |at| text.word(at) == ":");
                let until = if conditional {
                    text.find(assigned..end, |at| {
                        text.opens(at) || text.is(at, &["&", "&"])
                    })
                } else {
                    text.find(assigned..end, |at| text.word(at) == ";")
                };
                let mut set = self.read(assigned.min(until)..until, given);
                let declared = self.reader.named(text, colon..assigned, self.place);
                if !declared.is_empty() {
                    set = declared;
                }
                self.bind(at + 1..colon.min(assigned), &set);
                (Set::new(), until)
            }
            "for" if text.word(at + 1) != "<" => {
                let within = text.find(at..end, |at| text.word(at) == "in");
                let open = text.find(within..end, |at| text.opens(at));
                let set = self.read(within + 1..open, given);
                let set = self.reader.reach(&set);
                self.bind(at + 1..within, &set);
                (Set::new(), open)
            }
            "match" => {
                let open = text.find(at..end, |at| text.opens(at));
                let over = self.read(at + 1..open, given);
                let close = text.behind(open);
                let set = self.read_arms(open + 1..close - 1, &over, given);
                self.read_postfix(set, close, end)
            }
            "fn" if is_name(text.word(at + 1)) => {
                let signature = signature(text, at);
                self.bind_parameters(signature.parameters.clone(), &Set::new());
                (Set::new(), signature.body.start)
            }
            "|" if matches!(
                before,
                "(" | "," | "=" | "move" | "{" | "[" | ";" | ">" | "return" | "&" | "}"
            ) =>
            {
                let close = text.find(at + 1..end, |at| text.word(at) == "|");
                self.bind_parameters(at + 1..close, given);
                (Set::new(), close + 1)
            }
            "(" | "[" | "{" => {
                let close = text.behind(at);
                let set = self.read(at + 1..close - 1, given);
                self.read_postfix(set, close, end)
            }
            "'" | "#" => (Set::new(), at + 2),
            "as" => (Set::new(), at + 2),
            word if is_name(word) && !KEYWORDS.contains(&word) && before != "." => {
                let (set, next) = self.read_path(at, end);
                self.read_postfix(set, next, end)
            }
            _ => (Set::new(), at + 1),
        }
    }

    fn read_arms(&mut self, range: Range, over: &Set, given: &Set) -> Set {
        let text = self.text;
        let mut set = Set::new();
        let mut at = range.start;
        while at < range.end {
            let arrow = text.find(at..range.end, |at| text.is(at, &["=", ">"]));
            let guard = text.find(at..arrow, |at| text.word(at) == "if");
            self.bind(at..guard, over);
            self.read(guard..arrow, given);
            let body = (arrow + 2).min(range.end);
            let next = if text.word(body) == "{" && text.word(text.behind(body)) != "." {
                text.behind(body)
            } else {
                text.find(body..range.end, |at| text.word(at) == ",")
            };
            set.extend(self.read(body..next, given));
            at = next + usize::from(text.word(next) == ",");
            at = at.max(body);
        }
        set
    }

    /// A variable, a function, a type or a constant by its path, up to what follows it.
    fn read_path(&mut self, at: usize, end: usize) -> (Set, usize) {
        let text = self.text;
        let mut path = vec![text.word(at).to_owned()];
        let (mut next, mut last) = (at + 1, at);
        loop {
            if text.is(next, &["::", "<"]) {
                next = text.behind_generics(next + 1);
            } else if text.word(next) == "::" && is_name(text.word(next + 1)) {
                path.push(text.word(next + 1).to_owned());
                (last, next) = (next + 1, next + 2);
            } else {
                break;
            }
        }
        if text.word(next) == "!" && matches!(text.word(next + 1), "(" | "[" | "{") {
            return (Set::new(), next + 1);
        }
        if path.len() == 1
            && let Some(set) = self.held.get(&path[0])
        {
            return (set.clone(), next);
        }
        let name = path.last().cloned().unwrap_or_default();
        let types = if path[0] == "Self" {
            self.place.own.into_iter().collect()
        } else {
            self.reader.ids(self.place, &path)
        };
        let methods: Vec<Function> = self
            .reader
            .reach(&types)
            .iter()
            .filter(|_| path.len() > 1)
            .filter_map(|&id| self.reader.types.all[id].methods.get(&name))
            .flatten()
            .cloned()
            .collect();
        let functions = if methods.is_empty() && types.is_empty() {
            let items = self.reader.items(self.place.module, &path);
            let free = &self.reader.types.free;
            items
                .iter()
                .filter_map(|item| free.get(item).cloned())
                .collect()
        } else {
            methods
        };
        let (mut set, mut takes) = (Set::new(), Set::new());
        for function in &functions {
            self.call(last, &name, function.source);
            set.extend(&function.returns);
            takes.extend(&function.takes);
        }
        if functions.is_empty() {
            set = types;
        }
        if text.word(next) == "(" {
            let close = text.behind(next);
            let within = self.read(next + 1..(close - 1).min(end), &takes);
            // `Some(x)` and the like.
            if functions.is_empty() {
                set.extend(within);
            }
            next = close;
        }
        (set, next)
    }

    /// What follows an expression: fields, calls of methods, indexes.
    fn read_postfix(&mut self, mut set: Set, mut at: usize, end: usize) -> (Set, usize) {
        let text = self.text;
        while at < end {
            match text.word(at) {
                "?" => at += 1,
                "[" => {
                    let close = text.behind(at);
                    self.read(at + 1..close - 1, &Set::new());
                    at = close;
                }
                "." if !matches!(text.word(at + 1), "." | "") => {
                    let name = text.word(at + 1).to_owned();
                    let mut next = at + 2;
                    if text.is(next, &["::", "<"]) {
                        let close = text.behind_generics(next + 1);
                        // `cast::<Object>()` says what comes out.
                        set.extend(self.reader.named(text, next..close, self.place));
                        next = close;
                    }
                    if text.word(next) == "(" {
                        let close = text.behind(next);
                        set = self.read_method(set, at + 1, next + 1..close - 1);
                        at = close;
                    } else {
                        let types = &self.reader.types.all;
                        let fields: Set = self
                            .reader
                            .reach(&set)
                            .iter()
                            .filter_map(|&id| types[id].fields.get(&name))
                            .flatten()
                            .copied()
                            .collect();
                        let has_it = |id: &TypeId| types[*id].fields.contains_key(&name);
                        // A part of a tuple has no name of ours.
                        if name != "await" && self.reader.reach(&set).iter().any(has_it) {
                            set = fields;
                        }
                        at = next;
                    }
                }
                _ => break,
            }
        }
        (set, at)
    }

    fn read_method(&mut self, set: Set, at: usize, arguments: Range) -> Set {
        let name = self.text.word(at).to_owned();
        let methods: Vec<Function> = self
            .reader
            .reach(&set)
            .iter()
            .filter_map(|&id| self.reader.types.all[id].methods.get(&name))
            .flatten()
            .cloned()
            .collect();
        let (mut returns, mut takes) = (Set::new(), self.reader.reach(&set));
        for method in &methods {
            self.call(at, &name, method.source);
            returns.extend(&method.returns);
            takes.extend(&method.takes);
        }
        let by_name = self.reader.types.by_name.get(&name);
        if set.is_empty()
            && let Some(only) = by_name.filter(|files| files.len() == 1)
            && name.contains('_')
            && !OF_STD.contains(&name.as_str())
        {
            let to = *only.first().expect("one file");
            self.call(at, &name, to);
        }
        let within = self.read(arguments, &takes);
        if methods.is_empty() {
            // A method of the standard library gives what it has, or what its closure returns.
            let mut all = set;
            all.extend(within);
            all
        } else {
            returns
        }
    }
}

/// Methods of the standard library that a type of the crate has too. A receiver of no known type
/// has that one.
const OF_STD: &[&str] = &["is_ok", "is_zero", "try_reserve"];

/// Each call of a function in another file, of those files that `of` has.
pub(crate) fn calls(of: &Crate) -> Vec<Call> {
    let mut reader = Reader {
        of,
        texts: BTreeMap::new(),
        types: Types::default(),
        found: RefCell::default(),
    };
    reader.read_types();
    let mut calls = Vec::new();
    for piece in &of.pieces {
        let text = reader.text(piece.source);
        let at = text.tokens.partition_point(|(at, _)| *at < piece.at);
        let mut place = Place {
            source: piece.source,
            module: piece.module,
            own: None,
        };
        let mut functions = Vec::new();
        match text.word(at) {
            "fn" => functions.push(at),
            "impl" | "trait" => {
                if let Some((open, of_block)) = reader.block(piece, &text, at) {
                    place = of_block;
                    Reader::functions(&text, open, |at| functions.push(at));
                }
            }
            _ => {}
        }
        for at in functions {
            let signature = signature(&text, at);
            let mut body = Body {
                reader: &reader,
                text: &text,
                place,
                held: BTreeMap::new(),
                calls: &mut calls,
            };
            let own: Set = place.own.into_iter().collect();
            body.held.insert("self".to_owned(), own);
            body.bind_parameters(signature.parameters.clone(), &Set::new());
            body.read(signature.body.clone(), &Set::new());
        }
    }
    calls.retain(|call| call.from != call.to);
    calls
}
