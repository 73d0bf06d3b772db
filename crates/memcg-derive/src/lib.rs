#![doc = include_str!("../README.md")]

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Ident, Result, parse_macro_input,
    parse_quote,
};

/// Implements `memcg::Weigh`: the sum of the weights of all fields. Each type parameter has to be
/// `Weigh`.
///
/// * `#[weigh(skip)]`: the field counts as nothing, and its type need not be `Weigh`.
/// * `#[weigh(owned)]`: the field is an `Arc` or `Rc` whose one owner this value is. The block behind
///   it counts here: two counts, the value, and what that holds. `shrink_heap` leaves it as it is.
///
/// No reference to a field of a packed struct is sound, so the macro copies the fields of one: each
/// has to be `Copy`, or skipped, as the derives of the standard library have it.
///
/// ```
/// use memcg::Weigh;
///
/// #[derive(Weigh)]
/// enum Message<T> {
///     Ping,
///     Rows(Vec<T>),
///     Named { name: String, number: u64 },
/// }
///
/// assert_eq!(Message::<u32>::Ping.heap_bytes(), 0);
/// assert_eq!(Message::Rows(vec![1_u32, 2, 3]).heap_bytes(), 12);
/// assert_eq!(Message::<u32>::Named { name: "acme".into(), number: 1 }.heap_bytes(), 4);
/// ```
#[proc_macro_derive(Weigh, attributes(weigh))]
pub fn derive_weigh(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// The way in which a field counts.
enum Counts {
    Weight,
    Owned,
    Nothing,
}

impl Counts {
    fn of(field: &Field) -> Result<Counts> {
        let mut counts = Counts::Weight;
        for attribute in field
            .attrs
            .iter()
            .filter(|attribute| attribute.path().is_ident("weigh"))
        {
            attribute.parse_nested_meta(|meta| {
                counts = match () {
                    () if meta.path.is_ident("skip") => Counts::Nothing,
                    () if meta.path.is_ident("owned") => Counts::Owned,
                    () => return Err(meta.error("`#[weigh(skip)]` or `#[weigh(owned)]`")),
                };
                Ok(())
            })?;
        }
        Ok(counts)
    }
}

/// The code that the macro writes for the fields of a struct or variant.
struct Weights {
    /// Binds the fields that count.
    pattern: TokenStream,
    heap: TokenStream,
    tables: TokenStream,
    shrinks: TokenStream,
    /// For each of them: true if its type holds nothing.
    holds_nothing: Vec<TokenStream>,
}

impl Weights {
    /// `is_packed`: the fields are copied, not bound.
    fn of(path: &TokenStream, fields: &Fields, is_packed: bool) -> Result<Weights> {
        let (mut bound, mut holds_nothing) = (Vec::new(), Vec::new());
        let (mut heap, mut tables, mut shrinks) = (quote!(0_usize), quote!(0_usize), quote!());
        for (at, field) in fields.iter().enumerate() {
            let (name, of_type) = (format_ident!("field_{at}"), &field.ty);
            let member = field
                .ident
                .clone()
                .map_or_else(|| syn::Index::from(at).into(), syn::Member::Named);
            let place = if is_packed {
                quote!(&{ self.#member })
            } else {
                quote!(#name)
            };
            let (weight, shrink) = match Counts::of(field)? {
                Counts::Nothing => continue,
                Counts::Weight => {
                    holds_nothing.push(quote!(<#of_type as ::memcg::Weigh>::HOLDS_NOTHING));
                    tables = quote!(#tables.saturating_add(::memcg::Weigh::table_bytes(#place)));
                    let shrink = quote!(::memcg::Weigh::shrink_heap(#name););
                    (quote!(::memcg::Weigh::heap_bytes(#place)), shrink)
                }
                Counts::Owned => {
                    holds_nothing.push(quote!(false));
                    tables = quote!(#tables.saturating_add(::memcg::Weigh::table_bytes(&**#place)));
                    // The counts come first, and the whole has the alignment of the value.
                    let block = quote!({
                        let value = &**#place;
                        let align = ::core::cmp::max(
                            ::core::mem::align_of_val(value),
                            ::core::mem::align_of::<usize>(),
                        );
                        (2 * ::core::mem::size_of::<usize>())
                            .next_multiple_of(align)
                            .saturating_add(::core::mem::size_of_val(value))
                            .next_multiple_of(align)
                            .saturating_add(::memcg::Weigh::heap_bytes(value))
                    });
                    (block, quote!(let _ = #name;))
                }
            };
            heap = quote!(#heap.saturating_add(#weight));
            if !is_packed {
                shrinks = quote!(#shrinks #shrink);
                bound.push(quote!(#member: #name,));
            }
        }
        Ok(Weights {
            pattern: quote!(#path { #(#bound)* .. }),
            heap,
            tables,
            shrinks,
            holds_nothing,
        })
    }
}

/// True for `#[repr(packed)]`, with or without a number, also beside others.
fn is_packed(attributes: &[Attribute]) -> Result<bool> {
    let mut packed = false;
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("repr"))
    {
        attribute.parse_nested_meta(|meta| {
            packed |= meta.path.is_ident("packed");
            if meta.input.peek(syn::token::Paren) {
                let number;
                syn::parenthesized!(number in meta.input);
                number.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(packed)
}

fn expand(input: DeriveInput) -> Result<TokenStream> {
    let DeriveInput {
        ident: name,
        attrs: attributes,
        mut generics,
        data,
        ..
    } = input;
    let is_packed = is_packed(&attributes)?;
    let weights = match &data {
        Data::Struct(data) => vec![Weights::of(&quote!(Self), &data.fields, is_packed)?],
        Data::Enum(data) => {
            let of = |variant: &Ident, fields| Weights::of(&quote!(Self::#variant), fields, false);
            data.variants
                .iter()
                .map(|variant| of(&variant.ident, &variant.fields))
                .collect::<Result<_>>()?
        }
        Data::Union(_) => {
            return Err(Error::new(
                Span::call_site(),
                "a union does not say which of its fields it has",
            ));
        }
    };
    let parameters: Vec<Ident> = generics
        .type_params()
        .map(|parameter| parameter.ident.clone())
        .collect();
    for parameter in parameters {
        let copied = is_packed.then(|| quote!(+ ::core::marker::Copy));
        generics
            .make_where_clause()
            .predicates
            .push(parse_quote!(#parameter: ::memcg::Weigh #copied));
    }
    let (impls, types, bounds) = generics.split_for_impl();
    let holds_nothing = weights.iter().flat_map(|weights| &weights.holds_nothing);
    let of = if weights.is_empty() {
        quote!(*self)
    } else {
        quote!(self)
    };
    let method = |of_arm: fn(&Weights) -> &TokenStream| {
        let patterns = weights.iter().map(|weights| &weights.pattern);
        let arms = weights.iter().map(of_arm);
        quote!(match #of { #(#patterns => { #arms })* })
    };
    let (heap, tables, shrinks) = (
        method(|weights| &weights.heap),
        method(|weights| &weights.tables),
        method(|weights| &weights.shrinks),
    );
    Ok(quote! {
        #[automatically_derived]
        impl #impls ::memcg::Weigh for #name #types #bounds {
            const HOLDS_NOTHING: bool = true #(&& #holds_nothing)*;

            fn heap_bytes(&self) -> usize {
                #heap
            }

            fn table_bytes(&self) -> usize {
                #tables
            }

            fn shrink_heap(&mut self) {
                #shrinks
            }
        }
    })
}
