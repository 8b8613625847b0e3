"""The SDK's low-level server over the tools, resources and prompts, for both versions of the protocol.

Only this module and `stdio.transport` import the SDK.
"""

from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from ingle import __version__
from ingle.grants import ApprovalInfo
from ingle.mcp import arguments, following, resources, tools, views
from ingle.mcp.content import Answer, Link
from ingle.mcp.facts import Facts, description, instructions
from ingle.mcp.handlers import Tools, UnknownTool
from ingle.render.model import Image, Part

ALLOW_SCHEMA = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this call"}},
    "required": ["allow"],
}


def make_server(handlers: Tools, facts: Facts) -> "Server[Any]":
    listing = types.ListToolsResult(tools=[_listed(tool, facts) for tool in handlers.listed])
    with_views = types.ListToolsResult(tools=[_listed(tool, facts, with_view=True) for tool in handlers.listed])
    schemas = {tool.name: arguments.schema_of(tool.arguments) for tool in handlers.listed}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return with_views if _shows_views(context) else listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        async def progress(seconds: float, line: str) -> None:
            await context.session.report_progress(round(seconds, 3), None, line)

        following.asking.set(_ask_of(context))
        try:
            answer = await handlers.call(params.name, params.arguments, progress, _client_name(context))
        except UnknownTool as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
        return _wrapped(answer)

    async def list_resources(context: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=each.uri, name=each.name, description=each.description, mime_type=each.mime)
                for each in resources.FIXED
            ]
        )

    async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=each.uri, name=each.name, description=each.description, mime_type=each.mime
                )
                for each in resources.TEMPLATES
            ]
        )

    async def read_resource(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            found = await resources.read(handlers.service, uri)
        except resources.ResourceNotFound as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error), data={"uri": uri}) from None
        contents: types.TextResourceContents | types.BlobResourceContents
        if found.is_base64:
            contents = types.BlobResourceContents(uri=uri, mime_type=found.mime, blob=found.data)
        else:
            contents = types.TextResourceContents(uri=uri, mime_type=found.mime, text=found.data)
        return types.ReadResourceResult(contents=[contents])

    async def list_prompts(context: Any, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=each.name,
                    description=each.description,
                    arguments=[
                        types.PromptArgument(name=name, description=text, required=True)
                        for name, text in each.arguments.items()
                    ],
                )
                for each in resources.PROMPTS
            ]
        )

    async def get_prompt(context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        try:
            text = resources.prompt_text(params.name, params.arguments or {})
        except KeyError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error.args[0])) from None
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))]
        )

    server: Server[Any] = Server(
        "ingle",
        version=__version__,
        title="ingle",
        description="Live Python sessions",
        instructions=instructions(facts),
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    # Its tracing costs a tenth of a short call and is not used.
    server.middleware.clear()
    return server


def make_manager(server: "Server[Any]", max_body: int) -> StreamableHTTPSessionManager:
    """Return the SDK's HTTP transport. It does not check Host and Origin, because the guard does."""
    return StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=max_body)


def renew(server: "Server[Any]", facts: Facts) -> None:
    """Have the instructions say what is so now. Clients that ask for them later get these."""
    server.instructions = instructions(facts)


def _client_name(context: Any) -> str:
    """Return what the client calls itself; empty if it has not said.

    Before 2026 it says so once, and over HTTP no connection remembers it. The header of each request has to do.
    """
    params: types.InitializeRequestParams | None = context.session.client_params
    if params is not None:
        return params.client_info.name
    agent: str = "" if context.request is None else context.request.headers.get("user-agent", "")
    return agent.partition("/")[0]


def _shows_views(context: Any) -> bool:
    """Return whether the host shows views of MCP Apps, or has not said."""
    told: types.ClientCapabilities | None = context.session.client_capabilities
    return told is None or views.EXTENSION in (told.extensions or {})


def _ask_of(context: Any) -> following.Ask | None:
    """Return how to ask the person behind the host; None if the host does not ask people."""
    told: types.ClientCapabilities | None = context.session.client_capabilities
    if told is None or told.elicitation is None:
        return None

    async def ask(wanted: ApprovalInfo) -> bool | None:
        try:
            said = await context.session.elicit_form(following.question(wanted), ALLOW_SCHEMA, context.request_id)
        except MCPError:
            return None  # by the current protocol, and over HTTP, a server cannot ask
        if said.action == "decline":
            return False
        # An explicit answer: some hosts accept an empty form by themselves.
        return said.content.get("allow") is True if said.action == "accept" and said.content else None

    return ask


def _listed(tool: tools.Tool, facts: Facts, *, with_view: bool = False) -> types.Tool:
    view = views.BY_TOOL.get(tool.name) if with_view else None
    return types.Tool(
        _meta=None if view is None else {"ui": {"resourceUri": view.uri}},
        name=tool.name,
        description=description(tool, facts),
        input_schema=arguments.schema_of(tool.arguments),
        annotations=types.ToolAnnotations.model_validate(tool.listed_annotations),
    )


def _block(part: Part | Link) -> types.ContentBlock:
    if isinstance(part, Image):
        return types.ImageContent(type="image", data=part.data, mime_type=part.mime)
    if isinstance(part, Link):
        return types.ResourceLink(type="resource_link", uri=part.uri, name=part.name, mime_type=part.mime)
    return types.TextContent(type="text", text=part.text)


def _wrapped(answer: Answer) -> types.CallToolResult:
    """Convert an answer, without `structuredContent`: hosts that see it drop text and images."""
    content = [_block(part) for part in answer.parts]
    return types.CallToolResult(content=content, is_error=answer.is_error, _meta=answer.meta or None)
