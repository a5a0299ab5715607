"""What servers say of their rate limits, as their own documentation shows it: cases for `read`.

`CASES` is what the rules of the reader give for documented examples; in `BEYOND` the rules alone
would not do, and the vendor's meaning is what is expected. `HOSTILE` is what must never raise, and
never give a number that is negative, infinite or not a number.

Numbers are to be compared with a tolerance (epochs have fractions), and quotas as a set, since
their order says nothing. What is expected follows these choices, where a vendor leaves one:

- A policy which `RateLimit-Policy` names, and no counter mentions, is a quota without a remaining
  number. Unnamed policies (`100;w=60`) only lend their window to the unnamed counter: the one
  whose limit is the counter's, or else the only one there is.
- A header named for a window (`-Minute`, `-Daily`) gives that window, where its length is certain.
- `X-RateLimit-Reset-After` goes before `X-RateLimit-Reset`, and `retry-after-ms` before
  `Retry-After`.
- `RateLimit-*` and `X-RateLimit-*` in one response speak of one unnamed counter.
- A quota of which nothing can be read is none.

Not read, as nothing in the response says what it is: a reset in milliseconds from now (Prisjakt);
JavaScript's dates (lemlist); lists of resources in one header (Azure Compute); a limit that is
only the sum of what is used and what is left (Reddit).

A comment says which times were added: they are ours, the other values are as documented. An
example marked as a format is one whose documentation names the headers and their units only, as is
every one whose source is a program's code.
"""

from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]
Quota = tuple[str, float | None, float | None, float | None, float | None]


@dataclass(frozen=True)
class Case:
    """A response as documented, and what is to be read from it (with the default cap of 600)."""

    vendor: str
    source: str
    status: int
    headers: Headers
    now: float | None
    quotas: tuple[Quota, ...]  # name, limit, remaining, reset after, window
    retry_after: float | None


POLLI = "https://datatracker.ietf.org/doc/html/draft-polli-ratelimit-headers-00"
DRAFT_01 = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-01"
DRAFT_06 = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-06"
DRAFT_07 = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-07"
DRAFT_10 = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10"
DRAFT_PROPOSED = (
    "https://github.com/ietf-wg-httpapi/ratelimit-headers/tree/gh-pages/copilot/"
    "change-quota-policy-to-token"
)
RFC_9110 = "https://www.rfc-editor.org/rfc/rfc9110#name-retry-after"
GITHUB = "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api"
GITHUB_OLD = "https://docs.github.com/en/rest/overview/resources-in-the-rest-api (2021)"
GITLAB = "https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/"
OPENAI = "https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers"
OPENAI_FORUM = "https://community.openai.com/t/1268905"
AZURE_OPENAI = "https://learn.microsoft.com/en-us/azure/ai-services/openai/how-to/quota"
AZURE_OPENAI_QUESTION = "https://learn.microsoft.com/en-us/answers/questions/5625878/"
ANTHROPIC = "https://docs.claude.com/en/api/rate-limits#response-headers"
ANTHROPIC_TIERS = "https://docs.claude.com/en/api/service-tiers"
DISCORD = "https://docs.discord.com/developers/topics/rate-limits"
REDDIT = "https://support.reddithelp.com/hc/en-us/articles/16160319875092-Reddit-Data-API-Wiki"
SHOPIFY = "https://shopify.dev/docs/api/admin-rest/usage/rate-limits"
JIRA = "https://developer.atlassian.com/cloud/jira/platform/rate-limiting/"
JIRA_ISSUE = "https://jira.atlassian.com/browse/JRACLOUD-69262"
ATLASSIAN_DC = "https://confluence.atlassian.com/doc/_ratelimiting_httpheaders-992678779.html"
ZOOM = "https://developers.zoom.us/docs/api/rate-limits/"
ZOOM_FORUM = "https://devforum.zoom.us/t/18928"
SLACK = "https://docs.slack.dev/apis/web-api/rate-limits/"
STRIPE = "https://docs.stripe.com/rate-limits"
TWITTER = "https://docs.x.com/x-api/fundamentals/rate-limits"
HUBSPOT = "https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines"
GRAPH = "https://learn.microsoft.com/en-us/graph/throttling"
GRAPH_LIMITS = "https://learn.microsoft.com/en-us/graph/throttling-limits"
SHAREPOINT = (
    "https://learn.microsoft.com/en-us/sharepoint/dev/general-development/"
    "how-to-avoid-getting-throttled-or-blocked-in-sharepoint-online"
)
AZURE_RM = (
    "https://learn.microsoft.com/en-us/azure/azure-resource-manager/management/"
    "request-limits-and-throttling"
)
AZURE_CONFIG = "https://learn.microsoft.com/en-us/azure/azure-app-configuration/rest-api-throttling"
CLOUDFLARE = "https://developers.cloudflare.com/fundamentals/api/reference/limits/"
NOTION = "https://developers.notion.com/reference/request-limits"
LINEAR = "https://linear.app/developers/rate-limiting"
OKTA = "https://developer.okta.com/docs/reference/rl-best-practices/"
SENDGRID = (
    "https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits"
)
TWILIO = "https://www.twilio.com/docs/usage/rest-api-best-practices"
VIMEO = "https://developer.vimeo.com/guidelines/rate-limiting"
SPOTIFY = "https://developer.spotify.com/documentation/web-api/concepts/rate-limits"
GROQ = "https://console.groq.com/docs/rate-limits"
MISTRAL = "observed from api.mistral.ai; https://docs.mistral.ai documents no headers"
KUBERNETES = "https://kubernetes.io/docs/concepts/cluster-administration/flow-control/"
ENVOY = "envoyproxy/envoy api/envoy/extensions/filters/http/ratelimit/v3/rate_limit.proto"
KONG = "https://developer.konghq.com/plugins/rate-limiting/"
TRAEFIK = "traefik/traefik pkg/middlewares/ratelimiter/rate_limiter.go"
NGINX = "https://nginx.org/en/docs/http/ngx_http_limit_req_module.html"
DRF = "https://www.django-rest-framework.org/api-guide/throttling/"
FLASK_LIMITER = "https://flask-limiter.readthedocs.io/en/stable/#rate-limiting-headers"
SLOWAPI = "https://slowapi.readthedocs.io/en/latest/"
EXPRESS = "express-rate-limit/express-rate-limit source/headers.ts"
DOCKER = "https://docs.docker.com/docker-hub/usage/pulls/"
RESEND = "https://resend.com/docs/api-reference/rate-limit"
DIGITALOCEAN = "https://docs.digitalocean.com/reference/api/#section/Introduction/Rate-Limit"
ZENDESK = "https://developer.zendesk.com/api-reference/introduction/rate-limits/"
PINTEREST = "https://developers.pinterest.com/docs/reference/ratelimits/"
WHOOP = "https://developer.whoop.com/docs/developing/rate-limiting"
OPENROUTER = "https://openrouter.ai/docs/api-reference/limits"
RAPIDAPI = "https://docs.rapidapi.com/docs/response-headers"
APISIX = "https://apisix.apache.org/docs/apisix/plugins/limit-count/"
HEROKU = "https://devcenter.heroku.com/articles/platform-api-reference#rate-limits"
ASANA = "https://developers.asana.com/docs/rate-limits"
GITBOOK = "https://gitbook.com/docs/developers/gitbook-api/rate-limiting"
HELIX = (
    "https://help.perforce.com/helix-alm/helixalm/2019.2.1/restapi/Content/RESTAPI/RateLimits.htm"
)
PERSONA = "https://docs.withpersona.com/v2021-07-05/reference/rate-limiting"
COMETCHAT = "https://www.cometchat.com/docs/articles/rate-limits"
LARAVEL = "laravel/framework src/Illuminate/Routing/Middleware/ThrottleRequests.php"
GRAVITEE = "https://documentation.gravitee.io/apim/policies/rate-limit"
TURN = "https://whatsapp.turn.io/docs/api/rate_limiting"
BIGCOMMERCE = "https://developer.bigcommerce.com/docs/start/best-practices/api-rate-limits"
BREVO = "https://developers.brevo.com/docs/limit-headers"
SALESFORCE = (
    "https://developer.salesforce.com/docs/atlas.en-us.api_rest.meta/api_rest/headers_api_usage.htm"
)
CONTENTFUL = "https://www.contentful.com/developers/docs/references/content-delivery-api/"
XERO = "https://developer.xero.com/documentation/guides/oauth2/limits/"
MAILERLITE = "https://developers-classic.mailerlite.com/docs/api-rate-limits"

CASES: tuple[Case, ...] = (
    # The drafts, generation A: three fields, the quota policies in the limit.
    Case(
        "draft A",
        DRAFT_01,
        200,
        (
            ("RateLimit-Limit", "100"),
            ("Ratelimit-Remaining", "0"),
            ("Ratelimit-Reset", "50"),
        ),
        None,
        (("", 100, 0, 50, None),),
        None,  # exhausted, but served
    ),
    Case(
        "draft A, window",
        DRAFT_01,
        200,
        (
            ("RateLimit-Limit", "100, 100;w=60"),
            ("Ratelimit-Remaining", "99"),
            ("Ratelimit-Reset", "50"),
        ),
        None,
        (("", 100, 99, 50, 60),),
        None,
    ),
    Case(
        "draft A, limit alone",
        DRAFT_01,
        200,
        (("RateLimit-Limit", "100, 100;w=10"),),
        None,
        (("", 100, None, None, 10),),
        None,
    ),
    Case(
        "draft A, many windows",
        DRAFT_01,
        200,
        (("RateLimit-Limit", "10, 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400"),),
        None,
        (("", 10, None, None, 1),),
        None,
    ),
    Case(
        "draft A, burst",
        DRAFT_01,
        200,
        (("RateLimit-Limit", "10, 10;w=1;burst=1000, 1000;w=3600"),),
        None,
        (("", 10, None, None, 1),),
        None,
    ),
    Case(
        "draft A, comments",
        DRAFT_01,
        200,
        (
            (
                "RateLimit-Limit",
                (
                    '100, 100;w=60;burst=1000;comment="sliding window", '
                    '5000;w=3600;burst=0;comment="fixed window"'
                ),
            ),
        ),
        None,
        (("", 100, None, None, 60),),
        None,
    ),
    Case(
        "draft A, the daily window binds",
        DRAFT_01,
        200,
        (
            ("RateLimit-Limit", "5000, 1000;w=3600, 5000;w=86400"),
            ("RateLimit-Remaining", "100"),
            ("RateLimit-Reset", "36000"),
        ),
        None,
        (("", 5000, 100, 36000, 86400),),
        None,
    ),
    Case(
        "draft A, custom headers beside it",
        DRAFT_01,
        200,
        (
            ("acme-RateLimit-DayLimit", "5000"),
            ("acme-RateLimit-HourLimit", "1000"),
            ("RateLimit-Limit", "5000"),
            ("RateLimit-Remaining", "100"),
            ("RateLimit-Reset", "36000"),
        ),
        None,
        (("", 5000, 100, 36000, None),),
        None,
    ),
    Case(
        "draft A, throttled with a date",
        DRAFT_01,
        429,
        (
            ("Date", "Mon, 05 Aug 2019 09:27:00 GMT"),
            ("Retry-After", "Mon, 05 Aug 2019 09:27:05 GMT"),
            ("RateLimit-Reset", "5"),
            ("RateLimit-Limit", "100"),
            ("Ratelimit-Remaining", "0"),
        ),
        None,
        (("", 100, 0, 5, None),),
        5,
    ),
    Case(
        "draft A, dynamic limit",
        DRAFT_01,
        200,
        (
            ("RateLimit-Limit", "10, 100;w=60"),
            ("Ratelimit-Remaining", "9"),
            ("Ratelimit-Reset", "50"),
        ),
        None,
        (("", 10, 9, 50, 60),),
        None,
    ),
    Case(
        "draft A, pushing back",
        DRAFT_01,
        429,
        (
            ("RateLimit-Limit", "0, 15;w=20"),
            ("Ratelimit-Remaining", "0"),
            ("Ratelimit-Reset", "20"),
        ),
        None,
        (("", 0, 0, 20, 20),),
        20,
    ),
    Case(
        "draft A, pushing back with Retry-After",
        DRAFT_01,
        429,
        (
            ("Retry-After", "20"),
            ("RateLimit-Limit", "15, 100;w=60"),
            ("Ratelimit-Remaining", "15"),
            ("Ratelimit-Reset", "40"),
        ),
        None,
        (("", 15, 15, 40, 60),),
        20,
    ),
    Case(
        "draft A, no remaining",
        DRAFT_01,
        200,
        (("RateLimit-Limit", "10"), ("Ratelimit-Reset", "1")),
        None,
        (("", 10, None, 1, None),),
        None,
    ),
    Case(
        "draft A, a reset alone",
        DRAFT_01,
        200,
        (("Date", "Tue, 15 Nov 1994 08:00:00 GMT"), ("RateLimit-Reset", "36000")),
        None,
        (("", None, None, 36000, None),),
        None,
    ),
    Case(
        "draft A, policy of its own",
        DRAFT_06,
        200,
        (
            ("RateLimit-Limit", "100"),
            ("RateLimit-Policy", "100;w=60"),
            ("RateLimit-Remaining", "50"),
            ("RateLimit-Reset", "50"),
        ),
        None,
        (("", 100, 50, 50, 60),),
        None,
    ),
    Case(
        "draft A, policies on two lines",
        DRAFT_06,
        200,
        (
            ("RateLimit-Limit", "5000"),
            ("RateLimit-Policy", "1000;w=3600"),
            ("RateLimit-Policy", "5000;w=86400"),
            ("RateLimit-Remaining", "100"),
            ("RateLimit-Reset", "36000"),
        ),
        None,
        (("", 5000, 100, 36000, 86400),),
        None,
    ),
    Case(
        "draft polli, window written out",
        POLLI,
        200,
        (
            ("RateLimit-Limit", "10, 10;window=1, 50;window=60, 1000;window=3600"),
            ("RateLimit-Remaining", "9"),
            ("RateLimit-Reset", "1"),
        ),
        None,
        (("", 10, 9, 1, 1),),
        None,
    ),
    # Generation B: one field, a dictionary.
    Case(
        "draft B",
        DRAFT_07,
        200,
        (("RateLimit", "limit=100, remaining=50, reset=5"),),
        None,
        (("", 100, 50, 5, None),),
        None,
    ),
    Case(
        "draft B, policy",
        DRAFT_07,
        200,
        (
            ("RateLimit-Policy", "100;w=60"),
            ("RateLimit", "limit=100, remaining=50, reset=50"),
        ),
        None,
        (("", 100, 50, 50, 60),),
        None,
    ),
    Case(
        "draft B, policies",
        DRAFT_07,
        200,
        (
            ("RateLimit", "limit=5000, remaining=100, reset=36000"),
            ("RateLimit-Policy", "1000;w=3600, 5000;w=86400"),
        ),
        None,
        (("", 5000, 100, 36000, 86400),),
        None,
    ),
    Case(
        "draft B, throttled with a date",
        DRAFT_07,
        429,
        (
            ("Date", "Mon, 05 Aug 2019 09:27:00 GMT"),
            ("Retry-After", "Mon, 05 Aug 2019 09:27:05 GMT"),
            ("RateLimit", "limit=100, remaining=0, reset=5"),
        ),
        None,
        (("", 100, 0, 5, None),),
        5,
    ),
    Case(
        "draft B, over two lines",
        DRAFT_07,
        200,
        # ours: the draft allows it and shows no example
        (("RateLimit", "limit=10, remaining=1"), ("RateLimit", "reset=7")),
        None,
        (("", 10, 1, 7, None),),
        None,
    ),
    # Generation C: named policies.
    Case(
        "draft C, policies alone",
        DRAFT_10,
        200,
        (("RateLimit-Policy", '"burst";q=100;w=60,"daily";q=1000;w=86400'),),
        None,
        (("burst", 100, None, None, 60), ("daily", 1000, None, None, 86400)),
        None,
    ),
    Case(
        "draft C",
        DRAFT_10,
        200,
        (
            ("RateLimit-Policy", '"burst";q=100;w=60,"daily";q=1000;w=86400'),
            ("RateLimit", '"burst";r=50;t=30'),
        ),
        None,
        (("burst", 100, 50, 30, 60), ("daily", 1000, None, None, 86400)),
        None,
    ),
    Case(
        "draft C, counter alone",
        DRAFT_10,
        200,
        (("RateLimit", '"default";r=50;t=30'),),
        None,
        (("default", None, 50, 30, None),),
        None,
    ),
    Case(
        "draft C, partition key",
        DRAFT_10,
        200,
        (
            ("RateLimit-Policy", '"peruser";q=100;w=60;pk=:cHsdsRa894==:'),
            ("RateLimit", '"peruser";r=20;t=44;pk=:cHsdsRa894==:'),  # the counter is ours
        ),
        None,
        (("peruser", 100, 20, 44, 60),),
        None,
    ),
    Case(
        "draft C, no reset",
        DRAFT_10,
        200,
        (("RateLimit", '"default";r=999;pk=:dHJpYWwxMjEzMjM=:'),),
        None,
        (("default", None, 999, None, None),),
        None,
    ),
    Case(
        "draft C, large",
        DRAFT_10,
        200,
        (("RateLimit", '"default";r=300000000;t=60;pk=:QXBwLTk5OQ==:'),),
        None,
        (("default", None, 300_000_000, 60, None),),
        None,
    ),
    Case(
        "draft C, unit",
        DRAFT_10,
        200,
        (
            (
                "RateLimit-Policy",
                '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:',
            ),
        ),
        None,
        (("peruser", 65535, None, None, 10),),
        None,
    ),
    Case(
        "draft C, several field lines",
        DRAFT_10,
        200,
        (
            ("RateLimit-Policy", '"permin";q=50;w=60'),
            ("RateLimit-Policy", '"perhr";q=1000;w=3600'),
            ("RateLimit", '"permin";r=20;t=23'),  # the counters are of an earlier draft
            ("RateLimit", '"perhr";r=399;t=2402'),
        ),
        None,
        (("permin", 50, 20, 23, 60), ("perhr", 1000, 399, 2402, 3600)),
        None,
    ),
    Case(
        "draft C, redirection",
        DRAFT_10,
        301,
        (("Location", "/foo/123"), ("RateLimit", '"problemPolicy";r=0;t=10')),
        None,
        (("problemPolicy", None, 0, 10, None),),
        None,
    ),
    Case(
        "draft C, refused with two quotas",
        DRAFT_10,
        429,
        (
            ("Content-Type", "application/problem+json"),
            # ours: the draft's example of a refusal has no counters
            ("RateLimit-Policy", '"burst";q=100;w=60, "daily";q=1000;w=86400'),
            ("RateLimit", '"burst";r=0;t=30, "daily";r=400;t=40000'),
        ),
        None,
        (("burst", 100, 0, 30, 60), ("daily", 1000, 400, 40000, 86400)),
        30,
    ),
    Case(
        "draft C, vendor parameters",
        DRAFT_10,
        200,
        (
            ("RateLimit-Policy", '"default";q=100;w=10;acme-burst=1000;acme-policy="fixed, a;b"'),
            ("RateLimit", '"default";r=1;t=7;acme-x'),
        ),
        None,
        (("default", 100, 1, 7, 10),),
        None,
    ),
    # Generation D, an open proposal: a for r, w for t, names as tokens too.
    Case(
        "draft D, policies",
        DRAFT_PROPOSED,
        200,
        (("RateLimit-Policy", 'burst;q=100;w=60,"daily";q=1000;w=86400'),),
        None,
        (("burst", 100, None, None, 60), ("daily", 1000, None, None, 86400)),
        None,
    ),
    Case(
        "draft D",
        DRAFT_PROPOSED,
        200,
        (("RateLimit", "default;a=50;w=30"),),
        None,
        (("default", None, 50, 30, None),),
        None,
    ),
    Case(
        "draft D, token and string",
        DRAFT_PROPOSED,
        200,
        (
            ("RateLimit-Policy", "default;q=100;w=60"),  # ours
            ("RateLimit", '"default";a=50;w=30'),
        ),
        None,
        (("default", 100, 50, 30, 60),),
        None,
    ),
    Case(
        "draft D, partition and cost",
        DRAFT_PROPOSED,
        200,
        (
            ("RateLimit-Partition", '"api";user_id;method'),
            ("RateLimit", '"api";a=99;w=60;pk=:R0VUH2FsaWNl:;c=1'),  # the cost is ours
        ),
        None,
        (("api", None, 99, 60, None),),
        None,
    ),
    Case(
        "draft D, redirection",
        DRAFT_PROPOSED,
        301,
        (("Location", "/foo/123"), ("RateLimit", '"problemPolicy";a=0;w=10')),
        None,
        (("problemPolicy", None, 0, 10, None),),
        None,
    ),
    # Retry-After itself.
    Case("RFC 9110", RFC_9110, 503, (("Retry-After", "120"),), None, (), 120),
    Case(
        "RFC 9110, date",
        RFC_9110,
        503,
        (
            ("Date", "Fri, 31 Dec 1999 23:58:59 GMT"),  # ours
            ("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"),
        ),
        None,
        (),
        60,
    ),
    Case(
        "RFC 9110, date without Date",
        RFC_9110,
        503,
        (("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"),),
        946_684_790.0,  # ours: 23:59:50
        (),
        9,
    ),
    Case(
        "RFC 9110, date gone by",
        RFC_9110,
        503,
        (
            ("Date", "Sat, 01 Jan 2000 00:00:00 GMT"),  # ours
            ("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"),
        ),
        None,
        (),
        0,
    ),
    Case(
        "RFC 6585",
        "https://www.rfc-editor.org/rfc/rfc6585#section-4",
        429,
        (("Content-Type", "text/html"), ("Retry-After", "3600")),
        None,
        (),
        600,  # the cap
    ),
    # GitHub
    Case(
        "GitHub",
        GITHUB_OLD,
        200,
        (
            ("date", "Mon, 01 Jul 2013 17:27:06 GMT"),
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", "56"),
            ("x-ratelimit-used", "4"),
            ("x-ratelimit-reset", "1372700873"),
        ),
        None,
        (("", 60, 56, 1247, None),),
        None,
    ),
    Case(
        "GitHub, primary limit",
        GITHUB_OLD,
        403,
        (
            ("date", "Tue, 20 Aug 2013 14:50:41 GMT"),
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-used", "60"),
            ("x-ratelimit-reset", "1377013266"),
        ),
        None,
        (("", 60, 0, 3025, None),),
        600,  # the cap
    ),
    Case(
        "GitHub, primary limit, 429",
        GITHUB,
        429,
        (
            # a format; the time is ours
            ("date", "Tue, 20 Aug 2013 15:39:06 GMT"),
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-used", "5000"),
            ("x-ratelimit-reset", "1377013266"),
            ("x-ratelimit-resource", "core"),
        ),
        None,
        (("", 5000, 0, 120, None),),
        120,
    ),
    Case(
        "GitHub, secondary limit",
        GITHUB,
        403,
        (
            # a format; the times are ours
            ("date", "Tue, 20 Aug 2013 15:39:06 GMT"),
            ("retry-after", "60"),
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4832"),
            ("x-ratelimit-reset", "1377013266"),
        ),
        None,
        (("", 5000, 4832, 120, None),),
        60,
    ),
    Case(
        "GitHub, secondary limit without a time",
        GITHUB,
        403,
        (
            # a format; "otherwise, wait for at least one minute" is not in the headers
            ("date", "Tue, 20 Aug 2013 15:39:06 GMT"),
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4832"),
            ("x-ratelimit-reset", "1377013266"),
        ),
        None,
        (("", 5000, 4832, 120, None),),
        None,
    ),
    Case(
        "GitHub, forbidden for another reason",
        GITHUB,
        403,
        (("content-type", "application/json; charset=utf-8"),),
        None,
        (),
        None,
    ),
    # GitLab
    Case(
        "GitLab",
        "https://docs.gitlab.com/ee/user/gitlab_com/index.html#haproxy-api-throttle",
        200,
        (
            ("Date", "Wed, 17 Jul 2019 00:58:00 GMT"),  # ours
            ("RateLimit-Limit", "600"),
            ("RateLimit-Observed", "6"),
            ("RateLimit-Remaining", "594"),
            ("RateLimit-Reset", "1563325137"),
            ("RateLimit-ResetTime", "Wed, 17 Jul 2019 00:58:57 GMT"),
        ),
        None,
        (("", 600, 594, 57, None),),
        None,
    ),
    Case(
        "GitLab, throttled",
        GITLAB,
        429,
        (
            ("RateLimit-Limit", "60"),
            ("RateLimit-Name", "throttle_authenticated_web"),
            ("RateLimit-Observed", "67"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "1609844400"),
            ("RateLimit-ResetTime", "Tue, 05 Jan 2021 11:00:00 GMT"),
            ("Retry-After", "30"),
        ),
        1_609_844_370.0,  # ours
        (("", 60, 0, 30, None),),
        30,
    ),
    # OpenAI and its kin
    Case(
        "OpenAI",
        OPENAI,
        200,
        (
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ),
        None,
        (("requests", 60, 59, 1, None), ("tokens", 150_000, 149_984, 360, None)),
        None,
    ),
    Case(
        "OpenAI, milliseconds",
        OPENAI_FORUM,
        200,
        (
            ("x-ratelimit-limit-requests", "5000"),
            ("x-ratelimit-limit-tokens", "160000"),
            ("x-ratelimit-limit-tokens_usage_based", "160000"),
            ("x-ratelimit-remaining-requests", "4999"),
            ("x-ratelimit-remaining-tokens", "159976"),
            ("x-ratelimit-remaining-tokens_usage_based", "159976"),
            ("x-ratelimit-reset-requests", "12ms"),
            ("x-ratelimit-reset-tokens", "9ms"),
            ("x-ratelimit-reset-tokens_usage_based", "9ms"),
        ),
        None,
        (
            ("requests", 5000, 4999, 0.012, None),
            ("tokens", 160_000, 159_976, 0.009, None),
            ("tokens_usage_based", 160_000, 159_976, 0.009, None),
        ),
        None,
    ),
    Case(
        "OpenAI, throttled",
        "openai/openai-python src/openai/_base_client.py",
        429,
        (
            # a format: `retry-after-ms` is read first by the vendor's client
            ("retry-after", "1"),
            ("retry-after-ms", "673"),
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-limit-tokens", "30000"),
            ("x-ratelimit-limit-project-tokens", "20000"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-remaining-project-tokens", "12"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-reset-tokens", "673ms"),
            ("x-ratelimit-reset-project-tokens", "1h2m3.5s"),
        ),
        None,
        (
            ("requests", 500, 499, 0.12, None),
            ("tokens", 30_000, 0, 0.673, None),
            ("project-tokens", 20_000, 12, 3723.5, None),
        ),
        0.673,
    ),
    Case(
        "OpenAI, throttled by two without Retry-After",
        OPENAI,
        429,
        (
            # a format
            ("x-ratelimit-limit-requests", "3"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-requests", "20s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ),
        None,
        (("requests", 3, 0, 20, None), ("tokens", 150_000, 0, 360, None)),
        360,  # both have to be free
    ),
    Case(
        "Azure OpenAI",
        AZURE_OPENAI,
        200,
        (
            # a format
            ("x-ratelimit-limit-requests", "300"),
            ("x-ratelimit-limit-tokens", "300000"),
            ("x-ratelimit-remaining-requests", "299"),
            ("x-ratelimit-remaining-tokens", "299984"),
            ("x-ratelimit-reset-requests", "42"),
            ("x-ratelimit-reset-tokens", "10"),
        ),
        None,
        (("requests", 300, 299, 42, None), ("tokens", 300_000, 299_984, 10, None)),
        None,
    ),
    Case(
        "Azure OpenAI, unknown numbers",
        AZURE_OPENAI_QUESTION,
        429,
        (
            ("x-ratelimit-limit-tokens", "-1"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-reset-tokens", "0"),
        ),
        None,
        (("tokens", None, None, 0, None),),
        None,
    ),
    Case(
        "Azure OpenAI, throttled",
        AZURE_OPENAI,
        429,
        (
            # a format
            ("retry-after", "5"),
            ("retry-after-ms", "4567"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-reset-requests", "5"),
        ),
        None,
        (("requests", None, 0, 5, None),),
        4.567,
    ),
    Case(
        "Groq",
        GROQ,
        429,
        (
            ("retry-after", "2"),
            ("x-ratelimit-limit-requests", "14400"),
            ("x-ratelimit-limit-tokens", "18000"),
            ("x-ratelimit-remaining-requests", "14370"),
            ("x-ratelimit-remaining-tokens", "17997"),
            ("x-ratelimit-reset-requests", "2m59.56s"),
            ("x-ratelimit-reset-tokens", "7.66s"),
        ),
        None,
        (("requests", 14_400, 14_370, 179.56, None), ("tokens", 18_000, 17_997, 7.66, None)),
        2,
    ),
    Case(
        "Mistral",
        MISTRAL,
        200,
        (
            ("x-ratelimit-limit-req-minute", "50"),
            ("x-ratelimit-limit-tokens-minute", "50000"),
            ("x-ratelimit-remaining-tokens-minute", "47300"),
            ("x-ratelimit-remaining-req-minute", "49"),
            ("x-ratelimit-tokens-query-cost", "1300"),
        ),
        None,
        (
            ("req-minute", 50, 49, None, 60),
            ("tokens-minute", 50_000, 47_300, None, 60),
        ),
        None,
    ),
    Case(
        "OpenRouter",
        OPENROUTER,
        429,
        (
            ("Date", "Thu, 06 Mar 2025 23:58:00 GMT"),  # ours
            ("X-RateLimit-Limit", "20"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1741305600000"),
        ),
        None,
        (("", 20, 0, 120, None),),
        120,
    ),
    # Anthropic
    Case(
        "Anthropic",
        ANTHROPIC,
        200,
        (
            # a recorded response
            ("date", "Thu, 21 Aug 2025 12:41:00 GMT"),
            ("anthropic-ratelimit-input-tokens-limit", "80000"),
            ("anthropic-ratelimit-input-tokens-remaining", "80000"),
            ("anthropic-ratelimit-input-tokens-reset", "2025-08-21T12:40:59Z"),
            ("anthropic-ratelimit-output-tokens-limit", "16000"),
            ("anthropic-ratelimit-output-tokens-remaining", "16000"),
            ("anthropic-ratelimit-output-tokens-reset", "2025-08-21T12:41:00Z"),
            ("anthropic-ratelimit-requests-limit", "1000"),
            ("anthropic-ratelimit-requests-remaining", "999"),
            ("anthropic-ratelimit-requests-reset", "2025-08-21T12:40:59Z"),
            ("anthropic-ratelimit-tokens-limit", "96000"),
            ("anthropic-ratelimit-tokens-remaining", "96000"),
            ("anthropic-ratelimit-tokens-reset", "2025-08-21T12:40:59Z"),
            ("anthropic-organization-id", "36562039-1ae4-48e6-ae28-1e517e3d2d12"),
        ),
        None,
        (
            ("input-tokens", 80_000, 80_000, 0, None),
            ("output-tokens", 16_000, 16_000, 0, None),
            ("requests", 1000, 999, 0, None),
            ("tokens", 96_000, 96_000, 0, None),
        ),
        None,
    ),
    Case(
        "Anthropic, throttled",
        ANTHROPIC,
        429,
        (
            # a format
            ("date", "Thu, 21 Aug 2025 12:41:00 GMT"),
            ("retry-after", "22"),
            ("anthropic-ratelimit-input-tokens-limit", "80000"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2025-08-21T12:41:21.5Z"),
            ("anthropic-ratelimit-requests-limit", "1000"),
            ("anthropic-ratelimit-requests-remaining", "999"),
            ("anthropic-ratelimit-requests-reset", "2025-08-21T12:41:03+00:00"),
        ),
        None,
        (("input-tokens", 80_000, 0, 21.5, None), ("requests", 1000, 999, 3, None)),
        22,
    ),
    Case(
        "Anthropic, priority tier",
        ANTHROPIC_TIERS,
        200,
        (
            ("date", "Sun, 12 Jan 2025 23:11:00 GMT"),  # ours
            ("anthropic-priority-input-tokens-limit", "10000"),
            ("anthropic-priority-input-tokens-remaining", "9618"),
            ("anthropic-priority-input-tokens-reset", "2025-01-12T23:11:59Z"),
            ("anthropic-priority-output-tokens-limit", "10000"),
            ("anthropic-priority-output-tokens-remaining", "6000"),
            ("anthropic-priority-output-tokens-reset", "2025-01-12T23:12:21Z"),
        ),
        None,
        (
            ("priority-input-tokens", 10_000, 9618, 59, None),
            ("priority-output-tokens", 10_000, 6000, 81, None),
        ),
        None,
    ),
    # Discord
    Case(
        "Discord",
        DISCORD,
        200,
        (
            ("X-RateLimit-Limit", "5"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1470173023"),
            ("X-RateLimit-Reset-After", "1"),
            ("X-RateLimit-Bucket", "abcd1234"),
        ),
        None,
        (("", 5, 0, 1, None),),
        None,
    ),
    Case(
        "Discord, user limit",
        DISCORD,
        429,
        (
            ("Content-Type", "application/json"),
            ("Retry-After", "65"),
            ("X-RateLimit-Limit", "10"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1470173023.123"),
            ("X-RateLimit-Reset-After", "64.57"),
            ("X-RateLimit-Bucket", "abcd1234"),
            ("X-RateLimit-Scope", "user"),
        ),
        None,
        (("", 10, 0, 64.57, None),),
        65,
    ),
    Case(
        "Discord, shared limit",
        DISCORD,
        429,
        (
            ("Content-Type", "application/json"),
            ("Retry-After", "1337"),
            ("X-RateLimit-Limit", "10"),
            ("X-RateLimit-Remaining", "9"),
            ("X-RateLimit-Reset", "1470173023.123"),
            ("X-RateLimit-Reset-After", "64.57"),
            ("X-RateLimit-Bucket", "abcd1234"),
            ("X-RateLimit-Scope", "shared"),
        ),
        None,
        (("", 10, 9, 64.57, None),),
        600,  # the cap
    ),
    Case(
        "Discord, global limit",
        DISCORD,
        429,
        (
            ("Content-Type", "application/json"),
            ("Retry-After", "65"),
            ("X-RateLimit-Global", "true"),
            ("X-RateLimit-Scope", "global"),
        ),
        None,
        (),
        65,
    ),
    Case(
        "Discord, before Reset-After",
        DISCORD,
        200,
        (
            ("Date", "Tue, 02 Aug 2016 21:23:40 GMT"),  # ours
            ("X-RateLimit-Limit", "10"),
            ("X-RateLimit-Remaining", "1"),
            ("X-RateLimit-Reset", "1470173023.123"),
        ),
        None,
        (("", 10, 1, 3.123, None),),
        None,
    ),
    # Others by name
    Case(
        "Reddit",
        REDDIT,
        200,
        (
            # a format
            ("x-ratelimit-used", "4"),
            ("x-ratelimit-remaining", "596.0"),
            ("x-ratelimit-reset", "362"),
        ),
        None,
        (("", None, 596, 362, None),),
        None,
    ),
    Case(
        "Reddit, throttled",
        REDDIT,
        429,
        (
            # a format
            ("x-ratelimit-used", "600"),
            ("x-ratelimit-remaining", "0.0"),
            ("x-ratelimit-reset", "177"),
        ),
        None,
        (("", None, 0, 177, None),),
        177,
    ),
    Case(
        "Shopify",
        SHOPIFY,
        200,
        (("X-Shopify-Shop-Api-Call-Limit", "32/40"),),
        None,
        (("", 40, 8, None, None),),
        None,
    ),
    Case(
        "Shopify, throttled",
        SHOPIFY,
        429,
        (("X-Shopify-Shop-Api-Call-Limit", "40/40"), ("Retry-After", "2.0")),
        None,
        (("", 40, 0, None, None),),
        2,
    ),
    Case(
        "Jira, throttled",
        JIRA,
        429,
        (
            ("Date", "Wed, 08 Oct 2025 14:29:13 GMT"),  # ours
            ("Retry-After", "1847"),
            ("X-RateLimit-Limit", "100000"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "2025-10-08T15:00:00Z"),
            ("RateLimit-Reason", "jira-quota-global-based"),
        ),
        None,
        (("", 100_000, 0, 1847, None),),
        600,  # the cap
    ),
    Case(
        "Jira, no seconds",
        JIRA_ISSUE,
        429,
        (
            # a format: yyyy-MM-ddTHH:mmZ
            ("Date", "Sun, 05 May 2024 18:01:00 GMT"),
            ("X-RateLimit-Reset", "2024-05-05T18:02Z"),
            ("X-RateLimit-NearLimit", "true"),
            ("Retry-After", "5"),
        ),
        None,
        (("", None, None, 60, None),),
        5,
    ),
    Case(
        "Jira, near the limit",
        JIRA,
        200,
        (
            # a format
            ("X-RateLimit-Limit", "100"),
            ("X-RateLimit-Remaining", "19"),
            ("X-RateLimit-NearLimit", "true"),
        ),
        None,
        (("", 100, 19, None, None),),
        None,
    ),
    Case(
        "Jira, structured, well below the quota",
        JIRA,
        200,
        (
            ("RateLimit-Policy", '"global-app-quota";q=65000;w=3600'),
            ("RateLimit", '"global-app-quota";t=3200'),
        ),
        None,
        (("global-app-quota", 65_000, None, None, 3600),),  # `r` is required
        None,
    ),
    Case(
        "Jira, one enforced and one in beta",
        JIRA,
        200,
        (
            ("RateLimit-Policy", '"global-app-quota";q=65000;w=3600'),
            ("RateLimit", '"global-app-quota";t=200'),
            ("Beta-RateLimit-Policy", '"jira-burst-based";q=100;w=1'),
            ("Beta-RateLimit", '"jira-burst-based";r=90;t=1'),
        ),
        None,
        (("global-app-quota", 65_000, None, None, 3600),),
        None,
    ),
    Case(
        "Jira, beta headers are informational only",
        JIRA,
        200,
        (("Beta-RateLimit", '"global-app-quota";r=0;t=50'), ("Beta-Retry-After", "50")),
        None,
        (),
        None,
    ),
    Case(
        "Jira, unavailable",
        JIRA,
        503,
        (("Retry-After", "10"),),  # a format
        None,
        (),
        10,
    ),
    Case(
        "Zoom",
        ZOOM_FORUM,
        200,
        (
            ("x-ratelimit-category", "Light"),
            ("x-ratelimit-limit", "6000"),
            ("x-ratelimit-remaining", "5893"),
        ),
        None,
        (("", 6000, 5893, None, None),),
        None,
    ),
    Case(
        "Zoom, throttled by the second",
        ZOOM,
        429,
        (
            # a format: no time is sent
            ("X-RateLimit-Category", "Heavy"),
            ("X-RateLimit-Type", "QPS"),
            ("X-RateLimit-Limit", "40"),
            ("X-RateLimit-Remaining", "0"),
        ),
        None,
        (("", 40, 0, None, None),),
        None,
    ),
    Case("Slack", SLACK, 429, (("Retry-After", "30"),), None, (), 30),
    Case(
        "Stripe",
        STRIPE,
        429,
        (("Stripe-Rate-Limited-Reason", "endpoint-rate"), ("Stripe-Should-Retry", "true")),
        None,
        (),
        None,
    ),
    Case(
        "X",
        TWITTER,
        200,
        (
            ("date", "Tue, 16 Jan 2024 15:55:00 GMT"),  # ours
            ("x-rate-limit-limit", "900"),
            ("x-rate-limit-remaining", "847"),
            ("x-rate-limit-reset", "1705420800"),
        ),
        None,
        (("", 900, 847, 300, None),),
        None,
    ),
    Case(
        "X, throttled",
        TWITTER,
        429,
        (
            ("x-rate-limit-limit", "900"),
            ("x-rate-limit-remaining", "0"),
            ("x-rate-limit-reset", "1705420800"),
        ),
        1_705_420_500.0,  # ours
        (("", 900, 0, 300, None),),
        300,
    ),
    Case(
        "HubSpot",
        HUBSPOT,
        200,
        (
            # a recorded response
            ("X-HubSpot-RateLimit-Daily", "250000"),
            ("X-HubSpot-RateLimit-Daily-Remaining", "249991"),
            ("X-HubSpot-RateLimit-Interval-Milliseconds", "10000"),
            ("X-HubSpot-RateLimit-Max", "100"),
            ("X-HubSpot-RateLimit-Remaining", "99"),
            ("X-HubSpot-RateLimit-Secondly", "10"),
            ("X-HubSpot-RateLimit-Secondly-Remaining", "9"),
        ),
        None,
        (
            ("daily", 250_000, 249_991, None, 86_400),
            ("", 100, 99, None, 10),
            ("secondly", 10, 9, None, 1),
        ),
        None,
    ),
    Case(
        "HubSpot, OAuth",
        HUBSPOT,
        429,
        (
            # a format: no daily limit, no Retry-After
            ("X-HubSpot-RateLimit-Interval-Milliseconds", "10000"),
            ("X-HubSpot-RateLimit-Max", "110"),
            ("X-HubSpot-RateLimit-Remaining", "0"),
        ),
        None,
        (("", 110, 0, None, 10),),
        None,
    ),
    Case(
        "Microsoft Graph",
        GRAPH,
        429,
        (
            ("Content-Type", "application/json"),
            ("Retry-After", "10"),
        ),
        None,
        (),
        10,
    ),
    Case(
        "Microsoft Graph, identity",
        GRAPH_LIMITS,
        200,
        (
            # a format: a share of the limit used, and a cost, are no quota
            ("x-ms-resource-unit", "2"),
            ("x-ms-throttle-limit-percentage", "0.8"),
        ),
        None,
        (),
        None,
    ),
    Case(
        "SharePoint",
        SHAREPOINT,
        200,
        (
            ("RateLimit-Limit", "1200"),
            ("RateLimit-Remaining", "120"),
            ("RateLimit-Reset", "5"),
        ),
        None,
        (("", 1200, 120, 5, None),),
        None,
    ),
    Case(
        "SharePoint, throttled",
        SHAREPOINT,
        429,
        (
            ("Retry-After", "31"),
            ("RateLimit-Limit", "1200"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "31"),
        ),
        None,
        (("", 1200, 0, 31, None),),
        31,
    ),
    Case(
        "Azure Resource Manager",
        AZURE_RM,
        200,
        (("x-ms-ratelimit-remaining-subscription-reads", "11999"),),
        None,
        (("subscription-reads", None, 11_999, None, None),),
        None,
    ),
    Case(
        "Azure Resource Manager, throttled",
        AZURE_RM,
        429,
        (
            # a format
            ("x-ms-ratelimit-remaining-subscription-writes", "0"),
            ("x-ms-ratelimit-remaining-tenant-writes", "1199"),
            ("Retry-After", "17"),
        ),
        None,
        (
            ("subscription-writes", None, 0, None, None),
            ("tenant-writes", None, 1199, None, None),
        ),
        17,
    ),
    Case(
        "Azure App Configuration",
        AZURE_CONFIG,
        429,
        (
            ("retry-after-ms", "10"),
            ("Content-Type", "application/problem+json; charset=utf-8"),
        ),
        None,
        (),
        0.01,
    ),
    Case(
        "Azure App Configuration, unavailable",
        AZURE_CONFIG,
        503,
        (("retry-after-ms", "787"),),
        None,
        (),
        0.787,
    ),
    Case(
        "Cloudflare",
        CLOUDFLARE,
        200,
        (("Ratelimit", '"default";r=50;t=30'), ("Ratelimit-Policy", '"burst";q=100;w=60')),
        None,
        (("default", None, 50, 30, None), ("burst", 100, None, None, 60)),
        None,
    ),
    Case(
        "Cloudflare, throttled",
        CLOUDFLARE,
        429,
        (
            # a format
            ("Ratelimit", '"default";r=0;t=119'),
            ("Ratelimit-Policy", '"default";q=1200;w=300'),
            ("retry-after", "120"),
        ),
        None,
        (("default", 1200, 0, 119, 300),),
        120,
    ),
    Case("Notion", NOTION, 429, (("Retry-After", "10"),), None, (), 10),  # a format
    Case(
        "Linear",
        LINEAR,
        200,
        (
            ("Date", "Thu, 14 Sep 2023 20:03:00 GMT"),  # ours
            ("X-RateLimit-Requests-Limit", "1500"),
            ("X-RateLimit-Requests-Remaining", "1499"),
            ("X-RateLimit-Requests-Reset", "1694721826678"),
        ),
        None,
        (("requests", 1500, 1499, 46.678, None),),
        None,
    ),
    Case(
        "Linear, complexity and endpoint",
        LINEAR,
        200,
        (
            # a format
            ("Date", "Thu, 14 Sep 2023 20:03:00 GMT"),
            ("X-Complexity", "42"),
            ("X-RateLimit-Complexity-Limit", "250000"),
            ("X-RateLimit-Complexity-Remaining", "249958"),
            ("X-RateLimit-Complexity-Reset", "1694721826678"),
            ("X-RateLimit-Endpoint-Name", "issueCreate"),
            ("X-RateLimit-Endpoint-Requests-Limit", "100"),
            ("X-RateLimit-Endpoint-Requests-Remaining", "98"),
            ("X-RateLimit-Endpoint-Requests-Reset", "1694721791000"),
        ),
        None,
        (
            ("complexity", 250_000, 249_958, 46.678, None),
            ("endpoint-requests", 100, 98, 11, None),
        ),
        None,
    ),
    Case(
        "Okta",
        OKTA,
        200,
        (
            ("Date", "Thu, 31 Dec 2020 23:59:15 GMT"),  # ours
            ("X-Rate-Limit-Limit", "1200"),
            ("X-Rate-Limit-Remaining", "1199"),
            ("X-Rate-Limit-Reset", "1609459200"),
        ),
        None,
        (("", 1200, 1199, 45, None),),
        None,
    ),
    Case(
        "Okta, concurrency",
        OKTA,
        429,
        (
            # a format: all that is documented of a concurrency limit are the zeros
            ("Date", "Thu, 31 Dec 2020 23:59:15 GMT"),
            ("X-Rate-Limit-Limit", "0"),
            ("X-Rate-Limit-Remaining", "0"),
            ("X-Rate-Limit-Reset", "1609459200"),
        ),
        None,
        (("", 0, 0, 45, None),),
        45,
    ),
    Case(
        "SendGrid",
        SENDGRID,
        200,
        (
            ("Date", "Wed, 19 Feb 2014 13:07:00 GMT"),  # ours
            ("Content-Type", "application/json"),
            ("X-RateLimit-Limit", "500"),
            ("X-RateLimit-Remaining", "499"),
            ("X-RateLimit-Reset", "1392815263"),
        ),
        None,
        (("", 500, 499, 43, None),),
        None,
    ),
    Case(
        "SendGrid, throttled",
        SENDGRID,
        429,
        (
            ("Date", "Wed, 19 Feb 2014 13:07:00 GMT"),  # ours
            ("X-RateLimit-Limit", "150"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1392815263"),
        ),
        None,
        (("", 150, 0, 43, None),),
        43,
    ),
    Case(
        "Twilio",
        TWILIO,
        429,
        (("Twilio-Concurrent-Requests", "102"), ("Twilio-Request-Duration", "0.012")),
        None,
        (),
        None,
    ),
    Case(
        "Vimeo",
        VIMEO,
        200,
        (
            # a format: an RFC 3339 time with its offset
            ("Date", "Thu, 26 Apr 2018 15:57:30 GMT"),
            ("X-RateLimit-Limit", "100"),
            ("X-RateLimit-Remaining", "96"),
            ("X-RateLimit-Reset", "2018-04-26T11:58:00-04:00"),
        ),
        None,
        (("", 100, 96, 30, None),),
        None,
    ),
    Case("Spotify", SPOTIFY, 429, (("Retry-After", "5"),), None, (), 5),  # a format
    Case(
        "Kubernetes",
        KUBERNETES,
        429,
        # a format
        (
            ("Retry-After", "1"),
            ("X-Kubernetes-PF-FlowSchema-UID", "7f3d9a0e-6d5b-4b43-8a0b-5b6f4b6a5f10"),
        ),
        None,
        (),
        1,
    ),
    # Gateways
    Case(
        "Envoy",
        ENVOY,
        200,
        (
            ("x-ratelimit-limit", '10, 10;w=1;name="per-ip", 1000;w=3600'),
            ("x-ratelimit-remaining", "9"),  # ours, as is the reset
            ("x-ratelimit-reset", "1"),
        ),
        None,
        (("", 10, 9, 1, 1),),
        None,
    ),
    Case(
        "Envoy, before draft 03",
        ENVOY,
        429,
        (
            ("x-envoy-ratelimited", "true"),
            ("x-ratelimit-limit", '10, 10;window=1;name="per-ip", 1000;window=3600'),
            ("x-ratelimit-remaining", "0"),  # ours, as is the reset
            ("x-ratelimit-reset", "1"),
        ),
        None,
        (("", 10, 0, 1, 1),),
        1,
    ),
    Case(
        "Kong",
        KONG,
        200,
        (
            ("RateLimit-Limit", "5"),
            ("RateLimit-Remaining", "0"),
            ("X-RateLimit-Remaining-Minute", "0"),
            ("RateLimit-Reset", "53"),
            ("X-RateLimit-Limit-Minute", "5"),
            ("Date", "Tue, 19 Oct 2021 19:51:07 GMT"),
        ),
        None,
        (("", 5, 0, 53, None), ("minute", 5, 0, None, 60)),
        None,
    ),
    Case(
        "Kong, two windows",
        KONG,
        429,
        # a format
        (
            ("RateLimit-Limit", "6"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "47"),
            ("Retry-After", "47"),
            ("X-RateLimit-Limit-Minute", "6"),
            ("X-RateLimit-Remaining-Minute", "0"),
            ("X-RateLimit-Limit-Hour", "10"),
            ("X-RateLimit-Remaining-Hour", "4"),
        ),
        None,
        (("", 6, 0, 47, None), ("minute", 6, 0, None, 60), ("hour", 10, 4, None, 3600)),
        47,
    ),
    Case(
        "Traefik",
        TRAEFIK,
        429,
        (("Retry-After", "1"), ("X-Retry-In", "997.482ms")),
        None,
        (),
        1,
    ),
    Case("nginx", NGINX, 503, (("Server", "nginx"),), None, (), None),
    Case(
        "nginx, told to",
        NGINX,
        429,
        # a format: set by its administrator
        (("Server", "nginx"), ("Retry-After", "60")),
        None,
        (),
        60,
    ),
    Case(
        "Apache APISIX",
        APISIX,
        503,
        # a format
        (
            ("X-RateLimit-Limit", "2"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "58"),
            ("Server", "APISIX/3.12.0"),
        ),
        None,
        (("", 2, 0, 58, None),),
        58,
    ),
    Case(
        "Gravitee",
        GRAVITEE,
        200,
        (
            # a recorded response
            ("date", "Thu, 23 Mar 2023 15:59:57 GMT"),
            ("x-rate-limit-limit", "100"),
            ("x-rate-limit-remaining", "98"),
            ("x-rate-limit-reset", "1679587256800"),
        ),
        None,
        (("", 100, 98, 59.8, None),),
        None,
    ),
    Case(
        "RapidAPI",
        RAPIDAPI,
        200,
        (
            ("x-ratelimit-requests-limit", "500000"),
            ("x-ratelimit-requests-remaining", "482007"),
            ("x-ratelimit-requests-reset", "1169083"),
        ),
        None,
        (("requests", 500_000, 482_007, 1_169_083, None),),
        None,
    ),
    # Libraries for servers
    Case("Django REST framework", DRF, 429, (("Retry-After", "86"),), None, (), 86),  # a format
    Case(
        "Flask-Limiter, throttled",
        FLASK_LIMITER,
        429,
        # a format
        (
            ("Date", "Thu, 18 Oct 2018 07:55:33 GMT"),  # ours
            ("X-RateLimit-Limit", "2"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1539849353"),
            ("Retry-After", "20"),
        ),
        None,
        (("", 2, 0, 20, None),),
        20,
    ),
    Case(
        "SlowApi, throttled",
        SLOWAPI,
        429,
        (
            # a format: newer versions send a fraction
            ("Date", "Thu, 18 Oct 2018 07:55:33 GMT"),
            ("X-RateLimit-Limit", "5"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1539849353.75"),
        ),
        None,
        (("", 5, 0, 20.75, None),),
        20.75,
    ),
    Case(
        "express-rate-limit, legacy headers",
        EXPRESS,
        429,
        (
            ("Date", "Thu, 18 Oct 2018 07:55:33 GMT"),
            ("X-RateLimit-Limit", "100"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1539849353"),
            ("Retry-After", "20"),
        ),
        None,
        (("", 100, 0, 20, None),),
        20,
    ),
    Case(
        "express-rate-limit, draft 6",
        EXPRESS,
        200,
        (
            ("RateLimit-Policy", "100;w=900"),
            ("RateLimit-Limit", "100"),
            ("RateLimit-Remaining", "99"),
            ("RateLimit-Reset", "880"),
        ),
        None,
        (("", 100, 99, 880, 900),),
        None,
    ),
    Case(
        "express-rate-limit, draft 7",
        EXPRESS,
        200,
        (
            ("RateLimit-Policy", "100;w=900"),
            ("RateLimit", "limit=100, remaining=99, reset=880"),
        ),
        None,
        (("", 100, 99, 880, 900),),
        None,
    ),
    Case(
        "express-rate-limit, draft 8",
        EXPRESS,
        200,
        (
            ("RateLimit-Policy", '"100-in-15min"; q=100; w=900; pk=:MTJjYTE3YjQ5YWYy:'),
            ("RateLimit", '"100-in-15min"; r=99; t=880'),
        ),
        None,
        (("100-in-15min", 100, 99, 880, 900),),
        None,
    ),
    Case(
        "express-rate-limit, draft 6 and legacy headers",
        EXPRESS,
        200,
        (
            ("Date", "Thu, 18 Oct 2018 07:55:33 GMT"),
            ("X-RateLimit-Limit", "100"),
            ("X-RateLimit-Remaining", "99"),
            ("X-RateLimit-Reset", "1539849353"),
            ("RateLimit-Policy", "100;w=60"),
            ("RateLimit-Limit", "100"),
            ("RateLimit-Remaining", "99"),
            ("RateLimit-Reset", "20"),
        ),
        None,
        (("", 100, 99, 20, 60),),
        None,
    ),
    Case(
        "Laravel",
        LARAVEL,
        429,
        (
            ("Date", "Thu, 18 Oct 2018 07:55:33 GMT"),
            ("X-RateLimit-Limit", "60"),
            ("X-RateLimit-Remaining", "0"),
            ("Retry-After", "20"),
            ("X-RateLimit-Reset", "1539849353"),
        ),
        None,
        (("", 60, 0, 20, None),),
        20,
    ),
    # Further services
    Case(
        "Docker Hub",
        DOCKER,
        200,
        (
            ("ratelimit-limit", "100;w=21600"),
            ("ratelimit-remaining", "76;w=21600"),
            ("docker-ratelimit-source", "192.0.2.1"),
        ),
        None,
        (("", 100, 76, None, 21_600),),
        None,
    ),
    Case(
        "Resend",
        RESEND,
        429,
        (
            # a format
            ("ratelimit-policy", "2;w=1"),
            ("ratelimit-limit", "2"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "1"),
            ("retry-after", "1"),
            ("x-resend-daily-quota", "99"),
        ),
        None,
        (("", 2, 0, 1, 1),),
        1,
    ),
    Case(
        "DigitalOcean",
        DIGITALOCEAN,
        200,
        (
            ("Date", "Tue, 10 Jun 2014 18:37:00 GMT"),  # ours
            ("ratelimit-limit", "1200"),
            ("ratelimit-remaining", "1193"),
            ("ratelimit-reset", "1402425459"),
        ),
        None,
        (("", 1200, 1193, 39, None),),
        None,
    ),
    Case(
        "Zendesk",
        ZENDESK,
        200,
        (("X-Rate-Limit", "700"), ("X-Rate-Limit-Remaining", "699")),
        None,
        (("", 700, 699, None, None),),
        None,
    ),
    Case("Zendesk, throttled", ZENDESK, 429, (("Retry-After", "93"),), None, (), 93),
    Case(
        "CometChat",
        COMETCHAT,
        200,
        (("X-Rate-Limit", "700"), ("X-Rate-Limit-Remaining", "699")),
        None,
        (("", 700, 699, None, None),),
        None,
    ),
    Case(
        "Pinterest",
        PINTEREST,
        200,
        (
            ("x-ratelimit-limit", "100, 100;w=1, 1000;w=60"),
            ("x-ratelimit-remaining", "99"),
            ("x-ratelimit-reset", "1"),
        ),
        None,
        (("", 100, 99, 1, 1),),
        None,
    ),
    Case(
        "WHOOP",
        WHOOP,
        200,
        (
            ("X-RateLimit-Limit", "100, 100;window=60, 10000;window=86400"),
            ("X-RateLimit-Remaining", "98"),
            ("X-RateLimit-Reset", "3"),
        ),
        None,
        (("", 100, 98, 3, 60),),
        None,
    ),
    Case(
        "Heroku",
        HEROKU,
        200,
        (("RateLimit-Remaining", "2400"),),
        None,
        (("", None, 2400, None, None),),
        None,
    ),
    Case("Asana", ASANA, 429, (("Retry-After", "30"),), None, (), 30),
    Case(
        "GitBook",
        GITBOOK,
        429,
        (
            ("Date", "Tue, 20 Aug 2013 15:40:06 GMT"),  # ours
            ("X-RateLimit-Limit", "60"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1377013266"),
        ),
        None,
        (("", 60, 0, 60, None),),
        60,
    ),
    Case(
        "Helix ALM",
        HELIX,
        200,
        (
            ("X-RateLimit-Limit", "30"),
            ("X-RateLimit-Remaining", "25"),
            ("X-RateLimit-Reset", "17"),
        ),
        None,
        (("", 30, 25, 17, None),),
        None,
    ),
    Case(
        "Persona",
        PERSONA,
        200,
        (
            ("ratelimit-limit", "300"),
            ("ratelimit-remaining", "280"),
            ("ratelimit-reset", "53"),
        ),
        None,
        (("", 300, 280, 53, None),),
        None,
    ),
)

BEYOND: tuple[Case, ...] = (
    # Retry-After on every response: the time to the reset, not a request to wait.
    Case(
        "Flask-Limiter",
        FLASK_LIMITER,
        200,
        (
            ("X-RateLimit-Limit", "2"),
            ("X-RateLimit-Remaining", "1"),
            ("X-RateLimit-Reset", "1539849353"),
            ("Retry-After", "3600"),
            ("Date", "Thu, 18 Oct 2018 06:55:52 GMT"),
        ),
        None,
        (("", 2, 1, 3601, None),),
        None,
    ),
    Case(
        "Turn.io",
        TURN,
        200,
        (
            ("Date", "Wed, 08 Aug 2018 07:59:00 GMT"),  # ours
            ("Retry-After", "1"),
            ("X-Ratelimit-Bucket", "general"),
            ("X-Ratelimit-Limit", "60"),
            ("X-Ratelimit-Remaining", "21"),
            ("X-Ratelimit-Reset", "1533715145"),
        ),
        None,
        (("", 60, 21, 5, None),),
        None,
    ),
    Case(
        "Confluence Data Center",
        ATLASSIAN_DC,
        200,
        (
            # a format: "if you still have tokens left, it shows 0"
            ("X-RateLimit-Limit", "350"),
            ("X-RateLimit-Remaining", "349"),
            ("X-RateLimit-Interval-Seconds", "60"),
            ("X-RateLimit-FillRate", "5"),
            ("retry-after", "0"),
        ),
        None,
        (("", 350, 349, None, 60),),  # or no window: 5 tokens an interval, not 350
        None,
    ),
    # Retry-After as a time of RFC 3339, which is neither seconds nor an HTTP date.
    Case(
        "Zoom, daily limit",
        ZOOM,
        429,
        (
            ("Date", "Sat, 30 May 2020 23:55:00 GMT"),  # ours
            ("X-RateLimit-Category", "Heavy"),
            ("X-RateLimit-Type", "Daily-limit"),
            ("X-RateLimit-Limit", "30000"),
            ("X-RateLimit-Remaining", "0"),
            ("Retry-After", "2020-05-31T00:00:00Z"),
        ),
        None,
        (("", 30_000, 0, None, None),),
        300,
    ),
    # Refusals with another status: 400 (Linear) and 529 (Notion).
    Case(
        "Linear, throttled",
        LINEAR,
        400,
        (
            ("Date", "Thu, 14 Sep 2023 20:03:00 GMT"),  # ours
            ("X-RateLimit-Requests-Limit", "1500"),
            ("X-RateLimit-Requests-Remaining", "0"),
            ("X-RateLimit-Requests-Reset", "1694721826678"),
        ),
        None,
        (("requests", 1500, 0, 46.678, None),),
        46.678,
    ),
    Case("Notion, overloaded", NOTION, 529, (("Retry-After", "10"),), None, (), 10),
    # A reset, and nothing else, in a refusal: Together AI sends no Retry-After.
    Case(
        "Together AI",
        "https://docs.together.ai/docs/serverless/rate-limits",
        429,
        (("x-ratelimit-reset", "2"),),
        None,
        (("", None, None, 2, None),),
        2,
    ),
    # Resets in milliseconds that are no epochs: the header says so, or only the documentation.
    Case(
        "BigCommerce",
        BIGCOMMERCE,
        429,
        (
            ("X-Rate-Limit-Time-Window-Ms", "5000"),
            ("X-Rate-Limit-Time-Reset-Ms", "3000"),
            ("X-Rate-Limit-Requests-Quota", "25"),
            ("X-Rate-Limit-Requests-Left", "0"),
        ),
        None,
        (("requests", 25, 0, 3, 5),),
        3,
    ),
    # Other names for Retry-After and for the three.
    Case(
        "MailerLite Classic",
        MAILERLITE,
        429,
        (
            # a format
            ("Date", "Tue, 16 Feb 2021 08:02:00 GMT"),
            ("X-RateLimit-Limit", "60"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "2021-02-16 08:02:42"),
            ("X-RateLimit-Retry-After", "42"),
        ),
        None,
        (("", 60, 0, None, None),),  # a time without an offset could be any
        42,
    ),
    Case(
        "Brevo",
        BREVO,
        429,
        (
            ("x-sib-ratelimit-limit", "1000"),
            ("x-sib-ratelimit-remaining", "0"),
            ("x-sib-ratelimit-reset", "120"),
        ),
        None,
        (("", 1000, 0, 120, None),),
        120,
    ),
    Case(
        "Contentful",
        CONTENTFUL,
        429,
        (
            # a format: the reset alone is in seconds
            ("X-Contentful-RateLimit-Hour-Limit", "36000"),
            ("X-Contentful-RateLimit-Hour-Remaining", "35883"),
            ("X-Contentful-RateLimit-Second-Limit", "10"),
            ("X-Contentful-RateLimit-Second-Remaining", "0"),
            ("X-Contentful-RateLimit-Reset", "1"),
        ),
        None,
        (
            ("hour", 36_000, 35_883, None, 3600),
            ("second", 10, 0, None, 1),
            ("", None, None, 1, None),
        ),
        1,
    ),
    Case(
        "Xero",
        XERO,
        429,
        (
            # a format
            ("X-DayLimit-Remaining", "4987"),
            ("X-MinLimit-Remaining", "0"),
            ("X-AppMinLimit-Remaining", "9987"),
            ("X-Rate-Limit-Problem", "minute"),
            ("Retry-After", "32"),
        ),
        None,
        (
            ("day", None, 4987, None, 86_400),
            ("min", None, 0, None, 60),
            ("app-min", None, 9987, None, 60),
        ),
        32,
    ),
    Case(
        "Salesforce",
        SALESFORCE,
        200,
        (("Sforce-Limit-Info", "api-usage=18/5000"),),
        None,
        (("api-usage", 5000, 4982, None, None),),
        None,
    ),
)

HOSTILE: tuple[tuple[Headers, int], ...] = (
    # Numbers
    ((("Retry-After", "9" * 400),), 429),
    ((("Retry-After", str(10**400)),), 429),
    ((("Retry-After", "1e400"),), 429),
    ((("Retry-After", "nan"),), 429),
    ((("Retry-After", "inf"),), 503),
    ((("Retry-After", "-Infinity"),), 503),
    ((("Retry-After", "-1"),), 429),
    ((("Retry-After", "-0.0"),), 429),
    ((("Retry-After", "0x10"),), 429),
    ((("Retry-After", "1_000"),), 429),
    ((("Retry-After", "+5"),), 429),
    ((("Retry-After", "5,"),), 429),
    ((("Retry-After", "5, 10"),), 429),
    ((("Retry-After", "1.2.3"),), 429),
    ((("Retry-After", "."),), 429),
    ((("Retry-After", ""),), 429),
    ((("Retry-After", " \t "),), 429),
    ((("Retry-After", "\u0663\u0660"),), 429),  # Arabic-Indic digits
    ((("Retry-After", "\u00b2"),), 429),  # a superscript, which is a digit but no number
    ((("Retry-After", "\uff11\uff12"),), 429),  # fullwidth digits
    ((("Retry-After", "5\x00"),), 429),
    ((("Retry-After", "\x00"),), 429),
    ((("Retry-After", "5\r\nX-Injected: 1"),), 429),
    ((("Retry-After", "1" * 5000),), 429),  # more digits than int() takes
    ((("Retry-After", "0." + "1" * 100_000),), 429),
    ((("Retry-After", "5"), ("Retry-After", "500")), 429),
    ((("Retry-After", "soon"), ("Retry-After", "7")), 429),
    ((("retry-after-ms", "nan"), ("Retry-After", "3")), 429),
    ((("retry-after-ms", "-250"),), 429),
    ((("retry-after-ms", "1e309"),), 503),
    ((("retry-after-ms", str(10**400)),), 503),
    # Dates of HTTP
    ((("Retry-After", "Sunday, 06-Nov-94 08:49:37 GMT"),), 503),
    ((("Retry-After", "Sun Nov  6 08:49:37 1994"),), 503),
    ((("Retry-After", "Sun, 31 Feb 2021 08:49:37 GMT"),), 503),
    ((("Retry-After", "Sun, 06 Nov 1994 25:61:61 GMT"),), 503),
    ((("Retry-After", "Sun, 06 Nov 0000 08:49:37 GMT"),), 503),
    ((("Retry-After", "Fri, 31 Dec 9999 23:59:60 GMT"),), 503),
    ((("Retry-After", "Fri, 31 Dec 99999 23:59:59 GMT"),), 503),
    ((("Retry-After", "Sun, 06 Nov 1994 08:49:37 +9999"),), 503),
    ((("Retry-After", "Sun, 06 Nov 1994 08:49:37 -2400"),), 503),
    ((("Retry-After", "Sun, 06 Nov " + "9" * 5000 + " 08:49:37 GMT"),), 503),
    ((("Retry-After", "GMT"),), 503),
    ((("Date", "not a date"), ("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT")), 503),
    ((("Date", ""), ("X-RateLimit-Reset", "1470173023")), 429),
    (
        (
            ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("Date", "Fri, 31 Dec 9999 23:59:59 GMT"),
            ("X-RateLimit-Reset", "1470173023"),
        ),
        429,
    ),
    # Times of RFC 3339
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "0000-01-01T00:00:00Z")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "99999-01-01T00:00:00Z")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9999-12-31T23:59:59-23:59")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "0001-01-01T00:00:00+23:59")), 429),
    ((("X-RateLimit-Reset", "2016-12-31T23:59:60Z"),), 429),
    ((("X-RateLimit-Reset", "2025-01-12T23:11:59+99:99"),), 429),
    ((("X-RateLimit-Reset", "2025-01-12T23:11:59+24:00"),), 429),
    ((("X-RateLimit-Reset", "2025-01-12T23:11:59+05"),), 429),
    ((("X-RateLimit-Reset", "2025-01-12T23:11:59"),), 429),  # no offset
    ((("X-RateLimit-Reset", "2025-13-32T24:00:00Z"),), 429),
    ((("X-RateLimit-Reset", "2025-W03-1T00:00:00Z"),), 429),
    ((("X-RateLimit-Reset", "2025-01-12T23:11:59." + "9" * 400 + "Z"),), 429),
    ((("X-RateLimit-Reset", "20250112T231159Z"),), 429),
    ((("anthropic-ratelimit-tokens-reset", "2025-01-12t23:11:59z"),), 429),
    # Durations of Go
    ((("x-ratelimit-reset-tokens", "1h1h"),), 429),
    ((("x-ratelimit-reset-tokens", "1y"),), 429),
    ((("x-ratelimit-reset-tokens", ".s"),), 429),
    ((("x-ratelimit-reset-tokens", "1s1m"),), 429),
    ((("x-ratelimit-reset-tokens", "-6m0s"),), 429),
    ((("x-ratelimit-reset-tokens", "s"),), 429),
    ((("x-ratelimit-reset-tokens", "1m 2s"),), 429),
    ((("x-ratelimit-reset-tokens", "6M0S"),), 429),
    ((("x-ratelimit-reset-tokens", "1e3s"),), 429),
    ((("x-ratelimit-reset-tokens", "\u0661s"),), 429),
    ((("x-ratelimit-reset-tokens", "9" * 400 + "h"),), 429),
    ((("x-ratelimit-reset-tokens", "1\u00b5s"),), 429),
    ((("x-ratelimit-reset-tokens", "1us1\u03bcs1ns"),), 429),
    ((("x-ratelimit-reset-tokens", "1m" * 50_000),), 429),
    ((("x-ratelimit-reset-tokens", "1" * 50_000),), 429),
    # The three
    ((("X-RateLimit-Limit", "nan"), ("X-RateLimit-Remaining", "nan")), 200),
    ((("X-RateLimit-Limit", "inf"), ("X-RateLimit-Remaining", "inf")), 200),
    ((("X-RateLimit-Limit", "0"), ("X-RateLimit-Remaining", "0")), 200),
    ((("X-RateLimit-Limit", "0"), ("X-RateLimit-Remaining", "5")), 200),
    ((("X-RateLimit-Limit", "1e-320"), ("X-RateLimit-Remaining", "1e308")), 200),
    ((("X-RateLimit-Limit", "unlimited"), ("X-RateLimit-Remaining", "unlimited")), 200),
    ((("X-RateLimit-Limit", "burst:100;rate:10"), ("X-RateLimit-Remaining", "99")), 200),
    ((("X-RateLimit-Limit", "5,000"), ("X-RateLimit-Remaining", "4,999")), 200),
    ((("x-ratelimit-limit", "100, 100;w=60"), ("x-ratelimit-limit", "70000")), 200),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Remaining", "10")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1e9")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1e12")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1e308")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "-1470173023")), 429),
    ((("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(10**400))), 429),
    ((("RateLimit-Limit", ",,,"), ("RateLimit-Remaining", ";"), ("RateLimit-Reset", "=")), 429),
    ((("RateLimit-Limit", "100, 100;w"), ("RateLimit-Policy", "100;w=;q")), 200),
    ((("RateLimit-Limit", "100, 100;w=0"),), 200),
    ((("RateLimit-Limit", "100, 100;w=-60"),), 200),
    ((("RateLimit-Limit", "100, " * 20_000),), 200),
    # Shopify
    ((("X-Shopify-Shop-Api-Call-Limit", "32/0"),), 200),
    ((("X-Shopify-Shop-Api-Call-Limit", "/40"),), 200),
    ((("X-Shopify-Shop-Api-Call-Limit", "32/"),), 200),
    ((("X-Shopify-Shop-Api-Call-Limit", "41/40"),), 429),
    ((("X-Shopify-Shop-Api-Call-Limit", "-1/40"),), 200),
    ((("X-Shopify-Shop-Api-Call-Limit", "1/2/3"),), 200),
    ((("X-Shopify-Shop-Api-Call-Limit", "nan/inf"),), 200),
    # Structured fields
    ((("RateLimit", '"default"'),), 200),
    ((("RateLimit", '"default";r'),), 200),
    ((("RateLimit", '"default";r=?1;t=?0'),), 200),
    ((("RateLimit", '"default";r=1;r=2;t=3;t=4'),), 200),
    ((("RateLimit", '"default";r=1.5;t=0.25'),), 200),
    ((("RateLimit", '"default";r=-1;t=-30'),), 429),
    ((("RateLimit", '"default";r="0";t="30"'),), 429),
    ((("RateLimit", '"default";r=' + "9" * 400 + ";t=" + "9" * 400),), 429),
    ((("RateLimit", '"default";r=0;t=nan'),), 429),
    ((("RateLimit", '"default;r=0;t=30'),), 429),  # the string does not end
    ((("RateLimit", '"a\\"b\\\\";r=1;t=2, "a,b;c";r=3;t=4'),), 200),
    ((("RateLimit", '"\\x";r=1'),), 200),  # no such escape
    ((("RateLimit", '"d\u00e9faut";r=1;t=2'),), 200),
    ((("RateLimit", '"default";pk=:not base64!:;r=1;t=2'),), 200),
    ((("RateLimit", '"default";pk=:AAAA;r=1;t=2'),), 200),  # the bytes do not end
    ((("RateLimit", "(a b);r=1, ()"),), 200),  # inner lists
    ((("RateLimit", '"a";r=1;t=2,'),), 200),
    ((("RateLimit", ',"a";r=1;t=2'),), 200),
    ((("RateLimit", '"a";r=1;t=2 "b";r=0;t=9'),), 200),
    ((("RateLimit", '"a";r=1;t=2'), ("RateLimit", "limit=10, remaining=5, reset=1")), 200),
    ((("RateLimit", '"a";r=1;t=2'), ("RateLimit", '"a";r=0;t=900')), 429),
    ((("RateLimit", '"a";r=1;t=2;a=0;w=900'),), 429),  # both generations
    ((("RateLimit", '"";r=0;t=1'),), 429),
    ((("RateLimit", "problemPolicy;r=0, t=10"),), 301),  # as an editor's copy of the draft had it
    ((("RateLimit", "limit=100, remaining=, reset"),), 200),
    ((("RateLimit", "limit=100;x=1, remaining=0, remaining=50, reset=5"),), 200),
    ((("RateLimit", "limit=-100, remaining=-50, reset=-5"),), 429),
    ((("RateLimit", ";" * 50_000),), 200),
    ((("RateLimit", '"' + "\\" * 50_000),), 200),
    ((("RateLimit", "".join(f'"p{n}";r=0;t={n},' for n in range(5000))),), 429),
    ((("RateLimit-Policy", "default;l=100;w=10"), ("RateLimit", "default;r=50;t=5")), 200),
    ((("RateLimit-Policy", '"default";w=60'),), 200),  # q is required
    ((("RateLimit-Policy", '"default";q=100;w=0'),), 200),
    ((("RateLimit-Policy", '"default";q=-100;w=-60'),), 200),
    ((("RateLimit-Policy", '"default";q=1e3;w=60.5'),), 200),
    ((("RateLimit-Policy", '"a";q=1;w=1, "a";q=2;w=2'),), 200),
    # Names
    ((("", ""),), 200),
    ((("x-ratelimit-", "1"), ("x-ratelimit--", "1"), ("x-ratelimit", "1")), 200),
    ((("x-ratelimit-limit-", "1"), ("x-ratelimit-remaining-", "0")), 429),
    ((("x-ratelimit-limit-limit-limit", "1"), ("x-ratelimit-reset-reset", "1")), 429),
    ((("anthropic-ratelimit-limit", "1"), ("anthropic-ratelimit--remaining", "0")), 429),
    ((("x-ratelimit-limit-" + "a" * 50_000, "1"),), 200),
    ((("X-RATELIMIT-LIMIT", "10"), ("x-ratelimit-limit", "20")), 200),
    ((("\u212aetry-after", "5"), ("ret\x00ry-after", "5")), 429),  # a Kelvin sign
    (tuple((f"x-ratelimit-remaining-q{n}", "0") for n in range(2000)), 429),
)
